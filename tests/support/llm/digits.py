"""Prompts and tasks over the digits, for the tests of sampling."""

from __future__ import annotations

from dataclasses import replace

import torch

from kl_companion.llm.tasks import Example, Task

DIGITS = "0123456789="
PAD, BOS, EOS, VOCAB = 0, 1, 2, len(DIGITS) + 3
EQUAL = [Example("12=", "12"), Example("98=", "89"), Example("07=", "07")]
UNEQUAL = [Example("1=", "1"), Example("98765=", "5"), Example("", "7"), Example("432=", "2")]
TASK = Task("digits", DIGITS, 6, lambda n, g: EQUAL[:n], None)
ENDING = replace(TASK, ends=True, max_new_tokens=10)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
