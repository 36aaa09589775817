"""Prompts and tasks over the digits, for the tests of sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kl_companion.llm.generation import Samples
from kl_companion.llm.scoring import completion_logp
from kl_companion.llm.tasks import Example, Task

DIGITS = "0123456789="
PAD, BOS, EOS, VOCAB = 0, 1, 2, len(DIGITS) + 3
EQUAL = [Example("12=", "12"), Example("98=", "89"), Example("07=", "07")]
UNEQUAL = [Example("1=", "1"), Example("98765=", "5"), Example("", "7"), Example("432=", "2")]
TASK = Task("digits", DIGITS, 6, lambda n, g: EQUAL[:n], None)
ENDING = replace(TASK, ends=True, max_new_tokens=10)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def off_sampler(model: Any, samples: Samples, temperature: float = 1.0) -> float:
    """The largest difference of the trainer's log-probs and the sampler's, on the sampler's own choices."""
    with torch.no_grad():
        logp = completion_logp(model, samples, temperature=temperature)
    return float((logp - samples.behavior_logp)[samples.completion_mask.bool()].abs().max())
