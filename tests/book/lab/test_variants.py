"""Copies of a model in another precision or with fewer blocks, each against the same by another route."""

from __future__ import annotations

import pytest
import torch

from kl_book.lab.variants import quantized, rounded, trained, with_layers
from kl_companion.llm.generation import generate
from kl_companion.llm.models import frozen_copy, load_model, save_model
from kl_companion.llm.scoring import completion_logits
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Example, make_task
from kl_companion.llm.training import train
from tests.support.llm.digits import off_sampler


def samples_of(lm, n: int = 2):
    task = make_task("sort", digits=4)
    task = type(task)(**{**vars(task), "alphabet": None})
    examples = [Example("12=", ""), Example("345=", "")]
    return generate(lm, task, examples, n=n, generator=torch.Generator().manual_seed(0))


def test_a_rounded_copy_computes_in_the_other_precision(sharp) -> None:
    other = rounded(sharp)
    assert {p.dtype for p in other.model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in sharp.model.parameters()} == {torch.float32}
    for p, q in zip(other.model.parameters(), sharp.model.parameters(), strict=True):
        assert torch.equal(p, q.bfloat16())
    assert rounded(sharp, "float16").model.dtype == torch.float16
    with pytest.raises(ValueError, match="unknown dtype 'int8'"):
        rounded(sharp, "int8")


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantized_weights_lie_on_a_grid_per_output(sharp, bits: int) -> None:
    other = quantized(sharp, bits)
    most, seen = 2 ** (bits - 1) - 1, 0
    own = dict(sharp.model.named_modules())
    for name, module in other.model.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        before = own[name].weight
        if name == "lm_head":
            assert torch.equal(module.weight, before)
            continue
        for row, was in zip(module.weight, before, strict=True):
            step = was.abs().max() / most
            assert torch.allclose(row / step, (row / step).round(), atol=1e-3)
            assert (row - was).abs().max() <= step / 2 * (1 + 1e-4)
        seen += 1
    assert seen == 14  # seven in each of two blocks
    embedding = other.model.get_input_embeddings().weight
    assert torch.equal(embedding, sharp.model.get_input_embeddings().weight)


@pytest.mark.parametrize("kept", [[0], [1], [0, 1]])
def test_a_block_that_is_left_out_is_one_that_is_skipped(sharp, tmp_path, kept: list[int]) -> None:
    fewer = with_layers(sharp, kept)
    samples = samples_of(fewer)
    with torch.no_grad():
        found = completion_logits(fewer.model, samples)
        skipped = [
            sharp.model.model.layers[i].register_forward_hook(lambda _, given, out: given[0])
            for i in {0, 1} - set(kept)
        ]
        wanted = completion_logits(sharp.model, samples)
    for hook in skipped:
        hook.remove()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert off_sampler(fewer.model, samples) < 1e-5  # its cache fits, too
    assert len(sharp.model.model.layers) == 2
    assert sharp.model.config.num_hidden_layers == 2
    save_model(fewer, tmp_path / "fewer")
    with torch.no_grad():
        read = completion_logits(load_model(tmp_path / "fewer").model, samples)
    torch.testing.assert_close(read, found)


@pytest.mark.parametrize("kept", [[], [2], [1, 0], [0, 0], [-1]])
def test_blocks_that_are_not_there_are_refused(sharp, kept: list[int]) -> None:
    with pytest.raises(ValueError, match="expected increasing numbers from 0 to 1"):
        with_layers(sharp, kept)


def test_a_model_of_another_make_is_refused(sharp) -> None:
    class Other(torch.nn.Module):
        base_model = torch.nn.Linear(1, 1)

    with pytest.raises(ValueError, match="Other keeps its blocks elsewhere"):
        with_layers(sharp._replace(model=Other()), [0])


def test_a_run_is_kept_as_it_went(tiny, task) -> None:
    lm = frozen_copy(tiny)
    settings = Settings(estimator="k2", beta=0.1, steps=3, prompts=2, group=2, lr=1e-3)
    kept = trained(lm, task, settings, every=2)
    assert sorted(kept) == [0, 2, 3]
    policy = frozen_copy(lm)
    policy.model.requires_grad_(True)
    train(policy, task, settings, reference=lm)
    for own, start, end, wanted in zip(
        *(x.model.parameters() for x in (lm, kept[0], kept[3], policy)), strict=True
    ):
        assert torch.equal(own, start)
        assert torch.equal(end, wanted)
    assert not any(
        torch.equal(p, q) for p, q in zip(kept[2].model.parameters(), kept[3].model.parameters(), strict=True)
    )
