"""Everything that reads a language model runs on one device, and gives the numbers of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kl_book.lab.gradient_noise import gradient_noise
from kl_book.lab.text_moments import read_text, text_moments
from kl_companion.llm.evaluation import evaluate
from kl_companion.llm.generation import generate
from kl_companion.llm.measuring import measure, sequence_kl, teacher_forced
from kl_companion.llm.models import LanguageModel
from kl_companion.llm.scoring import completion_logp
from kl_companion.llm.settings import Settings
from kl_companion.llm.training import train
from tests.support.emulated_gpu import EmulatedGPU
from tests.support.llm.digits import TASK, UNEQUAL, seeded
from tests.support.llm.short_runs import copy

REWARDED = replace(TASK, reward=lambda text, example: float(text[:1] == example.answer))
FEW = Settings(steps=2, prompts=2, group=2, beta=0.1)


def moments(lm: LanguageModel, other: LanguageModel) -> Any:
    samples = generate(lm, TASK, UNEQUAL, n=2, generator=seeded())
    ours, theirs = (read_text(x, samples) for x in (lm, other))
    return text_moments("k3", ours.logits, theirs.logits, ours.inputs)


def measured(lm: LanguageModel, other: LanguageModel) -> Any:
    samples = generate(lm, TASK, UNEQUAL, n=2, generator=seeded())
    parts = measure(lm, other, samples, batch=3), measure(lm, other, samples, direction="forward", k=2)
    return [*parts, teacher_forced(other, samples), completion_logp(lm.model, samples)]


USES: dict[str, Callable[[LanguageModel, LanguageModel], Any]] = {
    "moments": moments,
    "measured": measured,
    "kl": lambda lm, other: sequence_kl(lm, other, TASK, UNEQUAL, n=2, generator=seeded()),
    "evaluation": lambda lm, other: evaluate(
        lm, other, REWARDED, examples=UNEQUAL, n=2, k=2, out_examples=UNEQUAL
    ),
    "noise": lambda lm, other: gradient_noise(lm, REWARDED, FEW, batches=2, reference=other),
}


def numbers(x: Any) -> list[float]:
    """All numbers of a result, in order."""
    if isinstance(x, torch.Tensor):
        return [float(y) for y in x.detach().cpu().flatten()]
    if isinstance(x, dict):
        return numbers([x[name] for name in sorted(x)])
    if isinstance(x, tuple | list):
        return [y for part in x for y in numbers(part)]
    return [] if x is None else [float(x)]


@pytest.mark.parametrize("name", USES)
def test_one_device_is_enough(name: str, sharp: LanguageModel, tiny: LanguageModel) -> None:
    expected = numbers(USES[name](copy(sharp), copy(tiny)))
    with EmulatedGPU() as gpu:
        pair = copy(sharp), copy(tiny)
        for lm in pair:
            gpu.move(lm.model)
        found = numbers(USES[name](*pair))
    assert len(expected) >= 3
    assert found == pytest.approx(expected, rel=2e-3, abs=1e-5, nan_ok=True)


def test_a_run_resumes_there(sharp: LanguageModel, tmp_path: Path) -> None:
    expected = train(copy(sharp), REWARDED, replace(FEW, steps=4))
    with EmulatedGPU() as gpu:
        for steps in (2, 4):
            lm = copy(sharp)
            gpu.move(lm.model)
            history = train(lm, REWARDED, replace(FEW, steps=steps), checkpoint=tmp_path, every=2)
    assert len(history.records) == 4
    for ours, theirs in zip(history.records, expected.records, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-4)
