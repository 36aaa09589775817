"""The functions of logits in plain torch, for the transforms of `torch.func`.

vmap, grad and jvp know no gradient that is written by hand. What they map is small enough for log-probs of
whole rows, which these formulas make.
"""

from __future__ import annotations

import torch

from kl_companion.divergences import Divergence
from kl_companion.estimators.vocabulary import sum_of_entries
from kl_companion.kernels.blocks import exact_dtype
from kl_companion.kernels.logit_transform import LogitTransform


def transformed() -> bool:
    """Whether a transform of `torch.func` runs the caller."""
    return bool(torch._C._are_functorch_transforms_active())


def divergence(
    d: Divergence, x: torch.Tensor, y: torch.Tensor, how: LogitTransform, inside: torch.Tensor | None
) -> torch.Tensor:
    """Return D_f of rows of raw logits, [..., vocab] -> [...]; 0 in rows that are not ``inside`` [rows]."""
    dtype = exact_dtype(x, y)
    p, q = _logp(x.to(dtype), how, inside), _logp(y.to(dtype), how.exchanged(), inside)
    value = sum_of_entries(d, p, q)
    return value if inside is None else value.where(inside.view(value.shape), 0.0)


def log_probs(
    x: torch.Tensor, index: torch.Tensor, how: LogitTransform, inside: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probs of ids [rows, k] and entropies [rows] of logits [..., vocab]; 0 as `divergence`."""
    p = _logp(x.to(exact_dtype(x)), how, inside).reshape(len(index), x.shape[-1])
    none = p.isneginf()
    entropy = -(p.exp() * p.masked_fill(none, 0.0)).sum(-1)
    logp = p.gather(-1, index)
    if inside is None:
        return logp, entropy
    return logp.where(inside.unsqueeze(-1), 0.0), entropy.where(inside, 0.0)


def _logp(x: torch.Tensor, how: LogitTransform, inside: torch.Tensor | None) -> torch.Tensor:
    """Log-probs of the policy's rows; those of rows outside are uniform, whatever stands there."""
    if inside is not None:
        x = x.where(inside.view(x.shape[:-1]).unsqueeze(-1), 0.0)
    x = how.scale * x
    x = x if how.cap is None else how.cap * torch.tanh(x / how.cap)
    return (x / how.temperature).log_softmax(-1)
