"""The losses of zhang2025design as printed: differentiable, with a stop-gradient, and with clipped ratios.

Each is a function of one sample of the normalized old measure; the total mass is left out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kl_book.ledger.claims.ground import dual_clip
from kl_book.ledger.claims.ground.dual_clip import PAPER, WIDE, Bounds, open_gates
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


def stopped_loss(divergence: str) -> Loss:
    """-SG(weight) log pi."""
    return lambda logp, w, r: -WEIGHTS[divergence](w, r).detach() * logp


def coefficient_loss(bounds: Bounds, *, stopped: bool, divergence: str = "URKL") -> Loss:
    """-C(w, SG(A)) log pi; ``stopped``: with the stop-gradient around all of C."""

    def loss(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        c = dual_clip.objective(w, ADVANTAGES[divergence](w, r).detach(), bounds)
        return -(c.detach() if stopped else c) * logp

    return loss


def surrogate_loss(bounds: Bounds, *, stopped: bool, divergence: str = "URKL") -> Loss:
    """The dual-clip loss, differentiated through w; ``stopped``: with A held fixed."""

    def loss(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        a = ADVANTAGES[divergence](w, r)
        return dual_clip.loss(w, a.detach() if stopped else a, bounds)

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
