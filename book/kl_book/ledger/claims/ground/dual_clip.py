"""Ratios that are clipped on both sides and once more for negative advantages, as losses and as factors.

All functions are of ratios w = pi / pi_old and of advantages, elementwise. What carries a gradient carries it
through.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Bounds(NamedTuple):
    """1 - eps_1, 1 + eps_2, and the bound c of negative advantages."""

    low: float
    high: float
    cap: float


PAPER = Bounds(0.8, 1.28, 2.0)  # eps of zhang2025design, section 5; c as its figures 2 and 3 draw it
WIDE = Bounds(0.0, 1e9, 1e9)  # no ratio leaves them


def objective(w: torch.Tensor, a: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """min(wA, clip(w)A) for A >= 0, max(min(wA, clip(w)A), cA) for A < 0, like ``w``."""
    inner = torch.minimum(w * a, w.clamp(bounds.low, bounds.high) * a)
    return torch.where(a >= 0, inner, torch.maximum(inner, bounds.cap * a))


def loss(w: torch.Tensor, a: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """max(-wA, -clip(w)A) for A >= 0, min(max(-wA, -clip(w)A), -cA) for A < 0, like ``w``."""
    inner = torch.maximum(-w * a, -w.clamp(bounds.low, bounds.high) * a)
    return torch.where(a >= 0, inner, torch.minimum(inner, -bounds.cap * a))


def open_gates(w: torch.Tensor, a: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """1 where the dual clip has a slope in w, 0 where it is flat, like ``w``; from its bounds alone."""
    rising = (a >= 0) & (w < bounds.high)
    falling = (a < 0) & (w > bounds.low) & (w < bounds.cap)
    return (rising | falling).double()


def effective_ratio(w: torch.Tensor, a: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """What the dual clip multiplies A by: at most 1 + eps_2 for A >= 0, between 1 - eps_1 and c for A < 0."""
    return torch.where(a >= 0, w.clamp(max=bounds.high), w.clamp(bounds.low, bounds.cap))


def branching_loss(
    logp: torch.Tensor, w: torch.Tensor, reward: torch.Tensor, kl: torch.Tensor, bounds: Bounds
) -> torch.Tensor:
    """Algorithm 2 of zhang2025design, lines 10 to 36, of every sample.

    Args:
        logp: log pi of the sample, with its gradient.
        w: pi / pi_old of the sample.
        reward: Reward minus baseline.
        kl: Its C_KL, the coefficient included.
        bounds: Of the clip.
    """
    w, kl = w.detach(), kl.detach()
    length = -logp  # its l_i
    fixed = length.detach()
    psi = (reward + kl / w) * length
    inside = psi * w
    above = (reward + kl / bounds.high) * fixed * bounds.high
    below = (reward + kl / max(bounds.low, 1e-9)) * fixed * bounds.low
    beyond = reward * fixed * bounds.cap + kl * fixed
    positive = torch.where(w < bounds.high, inside, above)
    negative = torch.where(w <= bounds.low, below, torch.where(w < bounds.cap, inside, beyond))
    return torch.where(psi >= 0, positive, negative)
