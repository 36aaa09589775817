"""The losses of zhang2025design as printed: differentiable, with a stop-gradient, and with clipped ratios.

Each is a function of one sample of the normalized old measure; the total mass is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground.unnormalized import BETA, Loss, OldMeasure, normalized

Weight = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of w and the reward of every sequence, [count]: what the score is multiplied by, without Z_old."""

# those of the unnormalized divergences stand behind Z_old
DIFFERENTIABLE: dict[str, Loss] = {
    "UFKL": lambda logp, w, r: -w * r + BETA * (w - w.log() - 1),
    "URKL": lambda logp, w, r: -w * r + BETA * (w * w.log() - w),
    "FKL": lambda logp, w, r: -w * r - BETA * logp,
    "RKL": lambda logp, w, r: w * (-r + BETA * w.log()),
}
WEIGHTS: dict[str, Weight] = {
    "UFKL": lambda w, r: w * r - BETA * (w - 1),
    "URKL": lambda w, r: w * (r - BETA * w.log()),
    "FKL": lambda w, r: w * r + BETA,
    "RKL": lambda w, r: w * (r - BETA * w.log() - BETA),
}
# A with wA = weight, of each divergence; a baseline is left out
ADVANTAGES: dict[str, Weight] = {
    "UFKL": lambda w, r: r - BETA * (w - 1) / w,
    "URKL": lambda w, r: r - BETA * w.log(),
    "FKL": lambda w, r: r + BETA / w,
    "RKL": lambda w, r: r - BETA * (w.log() + 1),
}
BASELINE = 1.7


# ratios that are clipped on both sides and once more for negative advantages, elementwise


class Bounds(NamedTuple):
    """1 - eps_1, 1 + eps_2, and the bound c of negative advantages."""

    low: float
    high: float
    cap: float


PAPER = Bounds(0.8, 1.28, 2.0)  # eps of zhang2025design, section 5; c as its figures 2 and 3 draw it
WIDE = Bounds(0.0, 1e9, 1e9)  # no ratio leaves them


def clipped_objective(w: torch.Tensor, a: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """min(wA, clip(w)A) for A >= 0, max(min(wA, clip(w)A), cA) for A < 0, like ``w``."""
    inner = torch.minimum(w * a, w.clamp(bounds.low, bounds.high) * a)
    return torch.where(a >= 0, inner, torch.maximum(inner, bounds.cap * a))


def clipped_loss(w: torch.Tensor, a: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """max(-wA, -clip(w)A) for A >= 0, min(max(-wA, -clip(w)A), -cA) for A < 0, like ``w``."""
    inner = torch.maximum(-w * a, -w.clamp(bounds.low, bounds.high) * a)
    return torch.where(a >= 0, inner, torch.minimum(inner, -bounds.cap * a))


def open_gates(w: torch.Tensor, a: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """1 where the dual clip has a slope in w, 0 where it is flat, like ``w``; from its bounds alone."""
    rising = (a >= 0) & (w < bounds.high)
    falling = (a < 0) & (w > bounds.low) & (w < bounds.cap)
    return (rising | falling).double()


def effective_ratio(w: torch.Tensor, a: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """The factor of A in the dual clip: at most 1 + eps_2 for A >= 0, between 1 - eps_1 and c for A < 0."""
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


# losses of samples


def stopped_loss(divergence: str) -> Loss:
    """-SG(weight) log pi."""
    return lambda logp, w, r: -WEIGHTS[divergence](w, r).detach() * logp


def coefficient_loss(bounds: Bounds, *, stopped: bool, divergence: str = "URKL") -> Loss:
    """-C(w, SG(A)) log pi; ``stopped``: with the stop-gradient around all of C."""

    def loss(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        c = clipped_objective(w, ADVANTAGES[divergence](w, r).detach(), bounds)
        return -(c.detach() if stopped else c) * logp

    return loss


def surrogate_loss(bounds: Bounds, *, stopped: bool, divergence: str = "URKL") -> Loss:
    """The dual-clip loss, differentiated through w; ``stopped``: with A held fixed."""

    def loss(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        a = ADVANTAGES[divergence](w, r)
        return clipped_loss(w, a.detach() if stopped else a, bounds)

    return loss


def advantage(world: OldMeasure, divergence: str = "URKL") -> torch.Tensor:
    """A of every sequence, [count]."""
    return ADVANTAGES[divergence](world.w, world.R)


def closed(world: OldMeasure, divergence: str = "URKL") -> torch.Tensor:
    """1 where the clip of the dual-clip loss is flat, otherwise 0, [count]."""
    return 1 - open_gates(world.w, advantage(world, divergence), PAPER)


def clipped_worlds() -> list[OldMeasure]:
    """Distributions that are sampled so far from the policy that the clip of the dual-clip loss closes."""
    return [w for w in normalized() if float(closed(w).max()) == 1]


def wide_is_exact(world: OldMeasure) -> float:
    """Error of the clipped coefficient where nothing is clipped."""
    return world.loss_error(coefficient_loss(WIDE, stopped=True), "URKL")
