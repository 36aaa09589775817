"""Samples of which some are chosen, and right answers as if they had been sampled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kl_companion.llm.generation import answer_samples, generate
from kl_companion.llm.tasks import Example
from tests.support.llm.digits import ENDING, EOS, EQUAL, PAD, TASK, seeded


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([2, 0], [2, 0]),
        (torch.tensor([2, 0]), [2, 0]),
        (torch.tensor([True, False, True]), [0, 2]),
        (slice(1, None), [1, 2]),
    ],
)
def test_select(sharp, rows, where) -> None:
    samples = generate(sharp, ENDING, EQUAL, generator=seeded())
    part = samples.select(rows)
    assert part.texts == [samples.texts[i] for i in where]
    assert part.whole == [samples.whole[i] for i in where]
    assert part.examples == [EQUAL[i] for i in where]
    assert part.prompt_index.tolist() == where
    for name in ("prompt_tokens", "prompt_mask", "tokens", "completion_mask", "attention_mask"):
        assert torch.equal(getattr(part, name), getattr(samples, name)[where]), name
    assert torch.equal(part.behavior_logp, samples.behavior_logp[where])
    assert torch.equal(part.finished, samples.finished[where])


def test_answers_as_completions(tiny) -> None:
    examples = [Example("1=", "12"), Example("98765=", "123456")]
    task = replace(ENDING, max_new_tokens=6)
    samples = answer_samples(tiny, task, examples)
    assert samples.tokens.tolist() == [[4, 5, EOS, PAD, PAD, PAD], [4, 5, 6, 7, 8, 9]]
    assert samples.completion_mask.tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert samples.prompt_mask.sum(-1).tolist() == [3, 7]
    assert samples.texts == samples.whole == ["12", "123456"]
    assert samples.behavior_logp.abs().sum() == 0
    fixed = answer_samples(tiny, TASK, examples)
    assert fixed.completion_mask.tolist() == [[1, 1, 0, 0, 0, 0], [1] * 6]


@pytest.mark.parametrize(
    ("answer", "change", "message"),
    [
        ("", {}, "has 0 tokens"),
        ("1234567", {}, "has 7 tokens, expected 1 to 6"),
        ("1", {"observe": lambda text, example: None}, "has an environment"),
    ],
)
def test_answers_that_are_no_completions(tiny, answer, change, message) -> None:
    with pytest.raises(ValueError, match=message):
        answer_samples(tiny, replace(TASK, **change), [Example("1=", answer)])
