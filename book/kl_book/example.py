"""The one example that runs through the book: a prompt, and the words that an answer may begin with."""

from __future__ import annotations

import torch

PROMPT = "Is 91 a prime number?"
# the first token decides the answer, its reward and its length in tokens
ANSWERS = {
    "No": ("No, 91 = 7 × 13.", 1.0, 9),
    "Yes": ("Yes.", 0.0, 2),
    "Let": ("Let me check: 91 / 7 = 13, so no.", 1.0, 16),
}
TOKENS = tuple(ANSWERS)


def policy() -> torch.Tensor:
    """Probabilities of the first token under the policy in training, [3] float64."""
    return torch.tensor([0.45, 0.50, 0.05], dtype=torch.float64)


def reference() -> torch.Tensor:
    """Probabilities of the first token under the reference, [3] float64."""
    return torch.tensor([0.30, 0.60, 0.10], dtype=torch.float64)
