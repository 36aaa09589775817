"""Models with rows that are no tokens give the numbers of the models without them, in every comparison."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from kl_book.lab.text_moments import read_text
from kl_companion.llm import decoding
from kl_companion.llm.distillation import distill
from kl_companion.llm.evaluation import evaluate, right_logp, sequence_kl
from kl_companion.llm.generation import Samples, answer_samples, generate
from kl_companion.llm.measuring import measure
from kl_companion.llm.models import LanguageModel, tiny_model
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Example, make_task
from kl_companion.llm.tokenizers import character_tokenizer
from kl_companion.llm.training import train
from kl_companion.monitor import KLMonitor
from tests.support.llm.digits import off_sampler

ROWS = [(0, 8), (5, 0), (3, 8), (8, 3), (4, 4)]  # that are added to the policy and to the reference
TASK = replace(make_task("sort", digits=3), reward=lambda text, example: float(text.count("1")))


def model(seed: int) -> LanguageModel:
    """A policy over 14 tokens in float64, whose next token depends on what it has read."""
    tokenizer = character_tokenizer("0123456789=")
    lm = tiny_model(tokenizer, hidden=16, layers=1, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for p in lm.model.parameters():
            if p.ndim > 1:
                p.mul_(1.5)
    return lm


def padded(lm: LanguageModel, rows: int) -> LanguageModel:
    """A copy with more rows, likelier than those of tokens, so that a sampler would draw them."""
    wider, vocab = copy.deepcopy(lm.model), lm.vocab
    if rows:
        wider.resize_token_embeddings(vocab + rows, mean_resizing=False)
        with torch.no_grad():
            weight = wider.get_input_embeddings().weight
            weight[vocab:] = 2.0 * weight[5 : 5 + rows]
    return LanguageModel(wider.eval(), lm.tokenizer)


@pytest.fixture(params=ROWS, ids=str)
def pairs(request: pytest.FixtureRequest) -> list[tuple[LanguageModel, LanguageModel]]:
    """Policy and reference without added rows, and with them."""
    both = model(0), model(1)
    return [both, tuple(padded(lm, rows) for lm, rows in zip(both, request.param, strict=True))]


def written(lm: LanguageModel, **options: Any) -> Samples:
    draw = torch.Generator().manual_seed(3)
    return generate(lm, TASK, TASK.draw(4, draw), n=8, generator=draw, **options)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.001])
@pytest.mark.parametrize("way", ["_written_out", "_through_the_model"])
def test_no_added_row_is_drawn(way: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_is_small_qwen2", lambda model: way == "_written_out")
    plain, wide = model(0), padded(model(0), 8)
    expected, got = (written(lm, temperature=temperature) for lm in (plain, wide))
    assert torch.equal(got.tokens, expected.tokens)
    torch.testing.assert_close(got.behavior_logp, expected.behavior_logp, rtol=1e-10, atol=1e-12)
    assert off_sampler(wide.model, got, temperature=temperature) < 1e-9
    with torch.no_grad():  # else the test would show nothing
        assert wide.model(got.prompt_tokens).logits[:, -1].softmax(-1)[:, plain.vocab :].sum(-1).max() > 0.3


def test_a_kl_is_that_of_the_tokens(pairs: list[tuple[LanguageModel, LanguageModel]]) -> None:
    examples = TASK.draw(4, torch.Generator().manual_seed(1))
    for direction in ("reverse", "forward"):
        expected, got = (
            sequence_kl(
                *pair, TASK, examples, n=3, generator=torch.Generator().manual_seed(2), direction=direction
            )
            for pair in pairs
        )
        assert got == pytest.approx(expected, rel=1e-10)
        assert got.kl > 0.1
    expected, got = (evaluate(*pair, TASK, examples=examples, k=2) for pair in pairs)
    assert got == pytest.approx(expected, rel=1e-10)


def test_samples_that_name_no_vocabulary_are_measured_over_the_tokens(
    pairs: list[tuple[LanguageModel, LanguageModel]],
) -> None:
    if len({lm.vocab for lm in pairs[1]}) == 1:
        pytest.skip("of one width all columns are compared, as whoever wrote the samples may have meant")
    samples = replace(written(pairs[0][0]), vocab=None)
    expected, got = (measure(*pair, samples).kl for pair in pairs)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_other_readers_of_one_model(pairs: list[tuple[LanguageModel, LanguageModel]]) -> None:
    examples = TASK.draw(4, torch.Generator().manual_seed(1))
    for plain, wide in zip(*pairs, strict=True):
        torch.testing.assert_close(right_logp(wide, TASK, examples), right_logp(plain, TASK, examples))
        samples = written(plain)
        torch.testing.assert_close(read_text(wide, samples), read_text(plain, samples), rtol=1e-9, atol=1e-9)
        assert answer_samples(wide, TASK, examples).vocab == samples.select([0, 2]).vocab == plain.vocab


@pytest.mark.parametrize(
    "choices",
    [
        {"estimator": "k2", "accumulate": 2},
        {"estimator": "exact_kl", "placement": "both"},
        {"estimator": "exact_forward_kl", "lag": 2},
        {"estimator": "top_k_reverse_kl", "k": 3},
        {"estimator": "k1", "placement": "reward", "penalty_from": "policy"},
        {"estimator": "exact_kl", "anchor": "ema", "decay": 0.5},
        {"estimator": "k3", "lesson": 1, "anchor": "taught"},
    ],
    ids=str,
)
def test_training_is_that_of_the_tokens(
    choices: dict[str, Any], pairs: list[tuple[LanguageModel, LanguageModel]]
) -> None:
    settings = Settings(**{"beta": 0.3, "steps": 3, "prompts": 2, "group": 3, "lr": 0.01, **choices})
    records = []
    for policy, reference in pairs:
        records.append(train(policy, TASK, settings, reference=reference).records)
    for expected, got in zip(*records, strict=True):
        assert got == pytest.approx(expected, rel=1e-7, abs=1e-10)
    plain, wide = (dict(policy.model.named_parameters()) for policy, _ in pairs)
    for name, x in plain.items():
        torch.testing.assert_close(wide[name][: len(x)], x, rtol=1e-7, atol=1e-9)


def test_distillation_is_that_of_the_tokens(pairs: list[tuple[LanguageModel, LanguageModel]]) -> None:
    records = [distill(*pair, TASK, "token_exact", steps=2, prompts=2, group=2).records for pair in pairs]
    for expected, got in zip(*records, strict=True):
        assert got == pytest.approx(expected, rel=1e-7, abs=1e-10)


def test_another_tokenizer_is_refused_whatever_the_widths() -> None:
    policy = model(0)
    other = tiny_model(character_tokenizer("0123456789+"), hidden=16, layers=1)
    examples = [Example("12=", "12=")]
    for reference in (other, padded(other, 8)):
        with pytest.raises(ValueError, match=r"different vocabularies \(14 and 14 tokens\)"):
            measure(policy, reference, written(policy))
        with pytest.raises(ValueError, match=r"different vocabularies \(14 and 14 tokens\)"):
            sequence_kl(policy, reference, TASK, examples, generator=torch.Generator())
        with pytest.raises(ValueError, match=r"different vocabularies \(14 and 14 tokens\)"):
            distill(policy, reference, TASK)


# -- the monitor, in any loop --------------------------------------------------------------------------------


def raw_logits(lm: LanguageModel, samples: Samples) -> torch.Tensor:
    """As a trainer has them, all columns, [batch, seq, vocab]."""
    with torch.no_grad():
        logits = lm.model(torch.cat([samples.prompt_tokens, samples.tokens], 1)).logits
    return logits[:, samples.prompt_tokens.shape[1] - 1 : -1]


def test_the_monitor_reads_the_tokens(pairs: list[tuple[LanguageModel, LanguageModel]]) -> None:
    if len({lm.vocab for lm in pairs[1]}) == 1:
        pytest.skip("of one width the monitor compares what the trainer compares: all columns")
    samples, seen = written(pairs[0][0]), []
    for pair in pairs:
        monitor = KLMonitor(estimator="k3", tokenizer=pair[0].tokenizer)
        logits = [raw_logits(lm, samples) for lm in pair]
        seen.append(monitor.observe(*logits, samples.tokens, samples.completion_mask, step=1).known())
        assert monitor.vocabulary == 14
    expected, got = ({k: x for k, x in s.items() if "seconds" not in k} for s in seen)
    assert got == pytest.approx(expected, rel=1e-9)
    assert got["kl"] > 0.1


def test_the_monitor_refuses_two_widths_that_are_not_padding() -> None:
    samples = written(model(0))
    logits, wider = raw_logits(model(0), samples), raw_logits(padded(model(1), 8), samples)
    answers = samples.tokens, samples.completion_mask
    with pytest.raises(ValueError, match=r"ref_logits has shape \[32, 3, 22\], expected \[32, 3, 14\]"):
        KLMonitor().observe(logits, wider, *answers)
    longer = character_tokenizer("0123456789=+-")
    with pytest.raises(ValueError, match=r"ref_logits has shape \[32, 3, 22\], expected \[32, 3, 14\]"):
        KLMonitor(tokenizer=longer).observe(logits, wider, *answers)
