"""Tensors of a batch without what lies outside the completion mask."""

from __future__ import annotations

import math

import torch

from kl_companion import checks


def masked(x: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """Return ``x`` with zeros outside the mask, even where it is NaN there; [batch, seq]."""
    checks.check_shape("x", x, completion_mask.shape, "completion_mask [batch, seq]")
    return x.where(completion_mask.bool(), 0)


def finite_rows(scores: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Return scores [batch, seq, vocab] whose rows outside the mask [batch, seq] are 0 where not finite."""
    usable = inside | scores.detach().sum(-1).isfinite()
    return scores.where(usable.unsqueeze(-1), 0.0)


def inside_rows(logp_all: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Return log-probs [batch, seq, vocab] that are uniform outside the mask [batch, seq].

    Nothing can overflow there, and no infinite slope meets the zero that a mask passes back.
    """
    return logp_all.where(inside.unsqueeze(-1), -math.log(logp_all.shape[-1]))
