"""Where the lag behind a moving anchor settles under a constant gradient, and how large that can be.

See `kl_companion.theory.ema` for the model.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from kl_companion.checks import check_choice
from kl_companion.theory.ema.modes import (
    EQUAL,
    ORDERS,
    Order,
    check_decay,
    check_rates,
    check_steps,
    lag_factor,
    pull_of,
    stability_threshold,
    vector_of,
)

Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "after")


def steady_lag(
    decay: float,
    lr: float,
    beta: float,
    fisher: torch.Tensor,
    gradient: torch.Tensor,
    *,
    period: int = 1,
    inner_steps: int = 1,
    order: Order = "new",
    moment: Moment = "before",
) -> torch.Tensor:
    """The lag that a constant gradient settles at, [d], just before or after the anchor moves.

    In a mode, with S = (1 - (1 - a)^T) / a (T at a = 0): before the move lr S g / (1 - factor) in both
    orders; after it decay times that (new), or decay - a times that plus lr g (old). With T = 1 and the
    old order both are lr g / (1 - decay + a), eq (63); as a goes to 0 the lag before the move is T times
    that of eq (63).

    Args:
        decay: Of the anchor.
        lr: Step size.
        beta: Coefficient of the KL.
        fisher: Fisher matrix, [d, d].
        gradient: What is ascended beside the KL, [d].
        period: Iterations between two moves of the anchor.
        inner_steps: Gradient steps per iteration.
        order: ``"new"`` or ``"old"``; see the module.
        moment: ``"before"`` or ``"after"`` the anchor moves.

    Raises:
        ValueError: as `lag_matrix`, a gradient of another shape, an eigenvalue below 0, an unknown moment,
            or a lag that does not settle: a mode at or above the threshold.

    Source: emapg2026, eq (63), for the old order and one step.
    """
    check_choice("moment", moment, MOMENTS)
    check_choice("order", order, ORDERS)
    steps = check_steps(period=period, inner_steps=inner_steps)
    threshold = stability_threshold(decay, steps=steps, order=order)
    a, modes = torch.linalg.eigh(pull_of(lr, beta, fisher))
    g = modes.mT @ vector_of("gradient", gradient, len(a))
    largest = a.abs().max().item() if len(a) else 0.0
    if len(a) and a.min() < -1e-9 * largest:
        raise ValueError(f"fisher has the eigenvalue {a.min() / (lr * beta):.4g}, expected 0 or more")
    if largest > threshold or math.isclose(largest, threshold, rel_tol=EQUAL):
        raise ValueError(
            f"lr * beta * largest eigenvalue is {largest:.6g}, expected less than {threshold:.6g}: the lag "
            "does not settle; lower lr or beta"
        )
    a = a.clamp(min=0.0)
    held = torch.zeros_like(a)
    for _ in range(steps):  # the sum of (1 - a)^j, without a division by a = 0
        held = 1 + (1 - a) * held
    before = lr * held * g / (1 - lag_factor(a, decay, steps=steps, order=order))
    if moment == "before":
        lag = before
    else:
        lag = decay * before if order == "new" else (decay - a) * before + lr * g
    return modes @ lag


def steady_kl(
    decay: float,
    lr: float,
    beta: float,
    fisher: torch.Tensor,
    gradient: torch.Tensor,
    *,
    period: int = 1,
    inner_steps: int = 1,
    order: Order = "new",
    moment: Moment = "before",
) -> float:
    """KL(policy || anchor) at the `steady_lag`, to second order: lag F lag / 2; arguments, errors as there.

    Source: emapg2026, eq (65).
    """
    lag = steady_lag(
        decay,
        lr,
        beta,
        fisher,
        gradient,
        period=period,
        inner_steps=inner_steps,
        order=order,
        moment=moment,
    )
    return (lag @ fisher.detach().double() @ lag / 2).item()


def lag_bound(
    decay: float,
    lr: float,
    gradient_norm: float,
    *,
    period: int = 1,
    inner_steps: int = 1,
    order: Order = "new",
    moment: Moment = "before",
) -> float:
    """Largest norm of the `steady_lag` over all Fisher matrices with lr * beta * eigenvalue at most 1.

    It is the steady lag without a KL: lr |g| T / (1 - decay) before the anchor moves; after it decay times
    that (new order), or lr |g| (1 + decay (T - 1)) / (1 - decay) (old order).

    Why: with x = 1 - a in [0, 1] the sum of the first T powers of x and the factor of the cycle are both
    largest at x = 1 in each mode, so their quotient is too; modes are orthogonal. With T = 1 it holds at
    every stable a, since 1 - factor is at least 1 - decay. With a > 1 and an even T it does not: the
    factor comes near 1 at the threshold, and the steady lag grows without bound.

    Args:
        decay: Of the anchor.
        lr: Step size.
        gradient_norm: |g|.
        period: Iterations between two moves of the anchor.
        inner_steps: Gradient steps per iteration.
        order: ``"new"`` or ``"old"``; see the module.
        moment: ``"before"`` or ``"after"`` the anchor moves.

    Raises:
        ValueError: a decay outside [0, 1), a step size that is not positive, a negative norm, counts below
            1, an unknown order or moment.

    Source: emapg2026, eq (64), for the old order and one step.
    """
    check_decay(decay)
    check_rates(lr, 0.0)
    check_choice("order", order, ORDERS)
    check_choice("moment", moment, MOMENTS)
    steps = check_steps(period=period, inner_steps=inner_steps)
    if not gradient_norm >= 0:
        raise ValueError(f"gradient_norm is {gradient_norm}, expected 0 or more")
    if moment == "before":
        held: float = steps
    else:
        held = decay * steps if order == "new" else 1 + decay * (steps - 1)
    return lr * gradient_norm * held / (1 - decay)
