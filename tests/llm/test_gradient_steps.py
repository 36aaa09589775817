"""A step of the training loop reads its numbers on the host once, stops at a wrong one, and says where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from kl_companion.host_reads import collecting
from kl_companion.llm.generation import BETWEEN_READS, generate
from kl_companion.llm.gradient_steps import GradientSteps
from kl_companion.llm.models import LanguageModel
from kl_companion.llm.scoring import completion_logits
from kl_companion.llm.tasks import Example, Task
from kl_companion.llm.training import Run, TrainingStopped
from tests.support.data import data
from tests.support.emulated_gpu import EmulatedGPU, Read
from tests.support.llm.digits import ENDING, EOS, TASK, UNEQUAL, seeded
from tests.support.llm.short_runs import FEW, copy, weights

DATA = data(__file__)

CHOICES: list[dict[str, Any]] = DATA["choices"]


@contextmanager
def on_gpu(lm: LanguageModel) -> Iterator[tuple[EmulatedGPU, LanguageModel]]:
    """A copy of a model on an emulated GPU."""
    with EmulatedGPU() as gpu:
        lm = copy(lm)
        gpu.move(lm.model)
        yield gpu, lm


def by_transformers(reads: list[Read]) -> list[Read]:
    return [read for read in reads if read.place.startswith("transformers")]


@pytest.mark.parametrize("given", CHOICES, ids=str)
def test_an_optimizer_step_reads_once(given: dict[str, Any], tiny: LanguageModel, task: Task) -> None:
    """And so does sampling. Rows of one prompt each are read by the model, which looks at their positions."""
    settings = replace(FEW, **given)
    plain = Run(copy(tiny), task, settings, None, None, None)
    expected = [plain.step() for _ in range(2)]
    with on_gpu(tiny) as (gpu, lm):
        run = Run(lm, task, settings, None, None, None)
        for record in expected:
            with gpu.counted() as reads:
                found = run.step()
            sampling = [read for read in reads if read.place.startswith("llm/generation.py")]
            others = [read for read in reads if read not in sampling and read not in by_transformers(reads)]
            assert len(sampling) == (0 if settings.lesson else 1)
            assert len(others) == settings.inner_steps, others
            assert list(found) == list(record)
            assert found == pytest.approx(record, rel=1e-3, abs=1e-5)
            if not settings.lesson and settings.accumulate < 4:
                assert by_transformers(reads) == []
        for ours, theirs in zip(lm.model.parameters(), plain.policy.model.parameters(), strict=True):
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-2, atol=1e-4)


def test_prompts_of_any_length_are_scored_without_a_read(sharp: LanguageModel) -> None:
    samples = generate(sharp, TASK, UNEQUAL, n=3, generator=seeded())
    expected = completion_logits(sharp.model, samples)
    with on_gpu(sharp) as (gpu, lm):
        moved = replace(samples, **{k: gpu.put(x) for k, x in vars(samples).items()})
        with gpu.counted() as reads:
            logits = completion_logits(lm.model, moved)
        assert [read for read in reads if read not in by_transformers(reads)] == []
        inside = samples.completion_mask.bool()
        torch.testing.assert_close(logits.detach().cpu()[inside], expected.detach()[inside])


# -- sampling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, BETWEEN_READS, 2 * BETWEEN_READS, 40])
def test_whether_all_have_ended_is_read_now_and_then(length: int, sharp: LanguageModel) -> None:
    """A GPU computes a few tokens more than are used; the samples do not have them."""
    task = replace(ENDING, max_new_tokens=length)
    expected = generate(sharp, task, UNEQUAL, n=2, generator=seeded(3))
    with on_gpu(sharp) as (gpu, lm):
        with gpu.counted() as reads:
            samples = generate(lm, task, UNEQUAL, n=2, generator=seeded(3))
        used = samples.tokens.shape[1]
        assert len(reads) - len(by_transformers(reads)) <= 1 + used // BETWEEN_READS + 1
        for name in ("tokens", "completion_mask", "attention_mask", "finished", "prompt_index"):
            assert torch.equal(getattr(samples, name).cpu(), getattr(expected, name)), name
        torch.testing.assert_close(samples.behavior_logp.cpu(), expected.behavior_logp)
        assert (samples.texts, samples.prompts) == (expected.texts, expected.prompts)


def test_columns_after_the_last_end_are_dropped(sharp: LanguageModel) -> None:
    lm = copy(sharp)
    with torch.no_grad():  # every completion ends soon
        lm.model.lm_head.weight[EOS] = lm.model.lm_head.weight.mean(0)
        lm.model.generation_config.eos_token_id = list(range(EOS, 8))
    task = replace(ENDING, max_new_tokens=30)
    expected = generate(lm, task, UNEQUAL, n=2, generator=seeded(3))
    assert 1 < expected.tokens.shape[1] < BETWEEN_READS
    with on_gpu(lm) as (_, moved):
        samples = generate(moved, task, UNEQUAL, n=2, generator=seeded(3))
        assert torch.equal(samples.tokens.cpu(), expected.tokens)


def test_an_environment_is_asked_by_one_read_a_token(sharp: LanguageModel) -> None:
    def observe(text: str, example: Example) -> str | None:
        return "5" if text in ("1", "3", "07") else None

    task = replace(ENDING, observe=observe, max_new_tokens=5)
    expected = generate(sharp, task, UNEQUAL, n=2, generator=seeded())
    with on_gpu(sharp) as (gpu, lm):
        with gpu.counted() as reads:
            samples = generate(lm, task, UNEQUAL, n=2, generator=seeded())
        assert len(reads) - len(by_transformers(reads)) <= samples.tokens.shape[1] + 1
        assert samples.whole == expected.whole
        assert torch.equal(samples.completion_mask.cpu(), expected.completion_mask)


# -- what is wrong -------------------------------------------------------------------------------------------


def spoiled(lm: LanguageModel) -> LanguageModel:
    lm = copy(lm)
    with torch.no_grad():
        lm.model.lm_head.weight[5].fill_(torch.nan)
    return lm


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_wrong_loss_stops_before_the_step(
    accumulate: int, away: bool, tiny: LanguageModel, task: Task
) -> None:
    """Of a policy whose weights are broken; what sampled is whole."""
    settings = replace(FEW, lag=2, accumulate=accumulate)

    def stop(run: Run, broken: LanguageModel) -> None:
        samples, rewards = run.sample()
        run.policy = broken
        before = weights(broken)
        with collecting() as flags:
            advantages = run.compare(samples, rewards)
        with pytest.raises((TrainingStopped, ValueError), match=r"logp is NaN|the loss of step 1 is nan"):
            run.descend(samples, rewards, advantages, flags)
        torch.testing.assert_close(weights(broken), before, rtol=0, atol=0, equal_nan=True)

    if away:
        with on_gpu(tiny) as (gpu, lm):
            broken = spoiled(tiny)
            gpu.move(broken.model)
            stop(Run(lm, task, settings, None, None, None), broken)
    else:
        stop(Run(copy(tiny), task, settings, None, None, None), spoiled(tiny))


def test_the_flags_of_the_comparison_are_read_with_the_step(tiny: LanguageModel, task: Task) -> None:
    run = Run(copy(tiny), task, FEW, None, None, None)
    samples, rewards = run.sample()
    with collecting() as flags:
        advantages = run.compare(samples, torch.full_like(rewards, torch.inf))
    assert flags
    before = weights(run.policy)
    with pytest.raises(ValueError, match=r"x is inf at \[0\]: expected finite numbers"):
        run.descend(samples, torch.full_like(rewards, torch.inf), advantages, flags)
    assert torch.equal(weights(run.policy), before)


def test_a_value_that_is_right_the_second_time_stops_too() -> None:
    parameter = torch.nn.Parameter(torch.tensor(1.0))
    steps = GradientSteps([parameter], None, None, lambda what, x: None)
    optimizer = torch.optim.SGD([parameter], lr=1.0)

    def differentiate() -> list[torch.Tensor]:
        (2 * parameter).backward()
        return [parameter.detach() * 0]

    with pytest.raises(RuntimeError, match="right when it was computed again"):
        steps.take(optimizer, differentiate, [], [torch.tensor(True)])
    assert parameter.item() == 1
    assert steps.collects
    assert steps.take(optimizer, differentiate, [torch.tensor(7)], []) == [2.0, 7, 0.0]
    assert parameter.item() == -1


def test_nothing_wrong_reaches_other_processes() -> None:
    parameter, averaged = torch.nn.Parameter(torch.tensor(1.0)), []
    steps = GradientSteps([parameter], 1.0, averaged.append, lambda what, x: None)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    with pytest.raises(RuntimeError):
        steps.take(optimizer, lambda: [], [], [torch.tensor(True)])
    assert averaged == []
