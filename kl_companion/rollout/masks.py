"""Tensors of a batch without what lies outside the completion mask."""

from __future__ import annotations

import torch

from kl_companion import checks


def masked(x: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """Return ``x`` with zeros outside the mask, even where it is NaN there; [batch, seq]."""
    checks.check_shape("x", x, completion_mask.shape, "completion_mask [batch, seq]")
    return x.where(completion_mask.bool(), 0)


def only_rows(scores: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Return scores [batch, seq, vocab] that are 0 outside the mask [batch, seq], in value and gradient."""
    return scores.where(inside.unsqueeze(-1), 0.0)
