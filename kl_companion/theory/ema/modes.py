"""One mode of the lag between a policy and its moving average: factors and thresholds, and the checks.

See `kl_companion.theory.ema` for the model; a = lr * beta * eigenvalue of the Fisher matrix.
"""

from __future__ import annotations

import math
from typing import Literal, TypeVar

import torch

from kl_companion.checks import check_choice, check_finite, check_floating, check_number, check_scalar

Order = Literal["new", "old"]
Number = TypeVar("Number", float, torch.Tensor)
ORDERS: tuple[Order, ...] = ("new", "old")
EQUAL = 1e-12  # relative rounding of a = lr * beta * eigenvalue


def check_decay(decay: float) -> None:
    """Raise ValueError unless the decay of the anchor is in [0, 1)."""
    check_number("decay", decay)
    if not 0 <= decay < 1:
        raise ValueError(f"decay is {decay}, expected 0 or more and less than 1 (1 is an anchor that stays)")


def check_steps(**counts: int) -> int:
    """The product of counts; ValueError if one is below 1."""
    for name, n in counts.items():
        if n < 1:
            raise ValueError(f"{name} is {n}, expected at least 1")
    return math.prod(counts.values())


def check_rates(lr: float, beta: float) -> None:
    """Raise ValueError unless the step size is positive, beta is not negative, and both are finite."""
    check_scalar("lr", lr, positive=True)
    check_scalar("beta", beta, least=0.0)


def lag_factor(a: Number, decay: float, *, steps: int = 1, order: Order = "new") -> Number:
    """What a cycle of ``steps`` gradient steps and one move of the anchor multiplies one mode of the lag by.

    New order: decay (1 - a)^T. Old order: (1 - a)^(T - 1) (decay - a); with T = 1 this is chi of eq (8).

    Args:
        a: lr * beta * eigenvalue, a number or a tensor of any shape, 0 or more.
        decay: Of the anchor, in [0, 1).
        steps: T, gradient steps per move of the anchor.
        order: ``"new"`` or ``"old"``; see the module.

    Raises:
        ValueError: a negative a, a decay outside [0, 1), steps below 1, an unknown order.

    Source: emapg2026, eq (8), for the old order and one step.
    """
    check_decay(decay)
    check_choice("order", order, ORDERS)
    check_steps(steps=steps)
    if not bool(torch.as_tensor(a >= 0).all()):
        raise ValueError(
            "a has an entry that is not 0 or more, expected lr * beta * eigenvalue of a Fisher matrix"
        )
    x = torch.as_tensor(a, dtype=None if isinstance(a, torch.Tensor) else torch.float64)  # may be infinite
    if order == "old":
        out = (1 - x) ** (steps - 1) * (decay - x)
    else:
        out = decay * (1 - x) ** steps if decay else torch.zeros_like(x)
    return out if isinstance(a, torch.Tensor) else out.item()


def stability_threshold(decay: float, *, steps: int = 1, order: Order = "new") -> float:
    """The a = lr * beta * eigenvalue below which a mode of the lag decays; at it, the lag stays bounded.

    New order: 1 + decay^(-1/T), which is at least 2 (infinite without an average: the anchor jumps to the
    policy). Old order: the root of (a - 1)^(T - 1) (a - decay) = 1 above 1, which is 1 + decay for T = 1 and
    less than 2 always.

    Raises:
        ValueError: a decay outside [0, 1), steps below 1, an unknown order.

    Source: emapg2026, eq (9), for the old order and one step.
    """
    check_decay(decay)
    check_choice("order", order, ORDERS)
    check_steps(steps=steps)
    if order == "new":
        # the power of a subnormal decay may overflow
        return math.inf if decay == 0 else 1 + math.exp(min(-math.log(decay) / steps, 700.0))
    if steps == 1:
        return 1.0 + decay
    low, high = 1.0, 2.0
    while (middle := (low + high) / 2) not in (low, high):
        if (middle - 1) ** (steps - 1) * (middle - decay) < 1:
            low = middle
        else:
            high = middle
    return low


def oscillation_threshold(decay: float, *, steps: int = 1, order: Order = "new") -> float:
    """The largest a for which no mode of the lag changes its sign, within a cycle or over it.

    New order: 1. Old order: the decay, whatever the number of steps.

    Raises:
        ValueError: as `stability_threshold`.

    Source: emapg2026, eq (60), for the old order and one step.
    """
    check_decay(decay)
    check_choice("order", order, ORDERS)
    check_steps(steps=steps)
    return 1.0 if order == "new" else float(decay)


def pull_of(lr: float, beta: float, fisher: torch.Tensor) -> torch.Tensor:
    """Matrix lr * beta * F in float64, [d, d], checked."""
    check_rates(lr, beta)
    check_floating("fisher", fisher)
    if fisher.ndim != 2 or fisher.shape[0] != fisher.shape[1]:
        raise ValueError(f"fisher has shape {list(fisher.shape)}, expected [d, d]")
    f = fisher.detach().double()
    if not f.isfinite().all():
        raise ValueError("fisher is not finite, expected numbers")
    size = f.abs().max().item() if f.numel() else 0.0
    if not torch.allclose(f, f.mT, rtol=0.0, atol=1e-9 * size):
        raise ValueError("fisher is not symmetric, expected a Fisher matrix")
    pull = lr * beta * f
    check_finite("lr * beta * fisher", pull)
    return pull


def vector_of(name: str, x: torch.Tensor, d: int) -> torch.Tensor:
    """A vector [d] in float64, checked."""
    check_floating(name, x)
    if tuple(x.shape) != (d,):
        raise ValueError(f"{name} has shape {list(x.shape)}, expected [{d}] like fisher")
    if not x.isfinite().all():
        raise ValueError(f"{name} is not finite, expected numbers")
    return x.detach().double()
