"""The lag over time: its map over one cycle, its closed forms, its regimes, and the plain loop beside them.

See `kl_companion.theory.ema` for the model.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

from kl_companion.checks import check_choice, check_scalar
from kl_companion.theory.ema.modes import (
    EQUAL,
    ORDERS,
    Order,
    check_decay,
    check_rates,
    check_steps,
    lag_factor,
    oscillation_threshold,
    pull_of,
    stability_threshold,
    vector_of,
)

Name = Literal["monotone", "oscillating", "marginal", "unstable"]


class Regime(NamedTuple):
    """What the lag does when it is left alone.

    Attributes:
        name: ``"monotone"`` (decays, no mode changes its sign), ``"oscillating"`` (decays, the stiffest
            mode changes its sign), ``"marginal"`` (at the threshold: bounded, does not decay) or
            ``"unstable"`` (grows).
        factor: Of the stiffest mode over one cycle.
        a: lr * beta * largest eigenvalue.
        threshold: `stability_threshold`, to compare with ``a``.
    """

    name: Name
    factor: float
    a: float
    threshold: float


class Window(NamedTuple):
    """The matrices of Lemma 4.1; ``block`` takes (weights, lag, gradient) k steps ahead."""

    D: torch.Tensor
    S: torch.Tensor
    M: torch.Tensor
    block: torch.Tensor


class LagPath(NamedTuple):
    """A simulated lag.

    Attributes:
        lag: [cycles * T + 1, d]: at the start and after every gradient step; where a step ends a cycle,
            after the anchor has moved too.
        before: [cycles, d]: the lag that each move of the anchor found; ``lag[T::T]`` is what it left.
        weights: Policy weights, like ``lag``; they start at 0.
    """

    lag: torch.Tensor
    before: torch.Tensor
    weights: torch.Tensor


def regime(
    decay: float,
    lr: float,
    beta: float,
    max_fisher_eigenvalue: float,
    *,
    period: int = 1,
    inner_steps: int = 1,
    order: Order = "new",
) -> Regime:
    """What the lag does when it is left alone: decay, oscillate or grow.

    Args:
        decay: Of the anchor.
        lr: Step size of plain gradient descent. (Adam divides by the root of its second moment.)
        beta: Coefficient of the KL.
        max_fisher_eigenvalue: Or an upper bound, such as the trace.
        period: Iterations between two moves of the anchor.
        inner_steps: Gradient steps per iteration.
        order: ``"new"`` or ``"old"``; see the module.

    Raises:
        ValueError: a decay outside [0, 1), a step size that is not positive, a negative beta or eigenvalue,
            counts below 1, an unknown order.

    Source: emapg2026, Lemma 4.2 (old order, one step) and Algorithm 3 (new order).
    """
    check_rates(lr, beta)
    steps = check_steps(period=period, inner_steps=inner_steps)
    if not (max_fisher_eigenvalue >= 0 and math.isfinite(max_fisher_eigenvalue)):
        raise ValueError(f"max_fisher_eigenvalue is {max_fisher_eigenvalue}, expected 0 or more")
    check_scalar("lr * beta", lr * beta)
    a = lr * beta * max_fisher_eigenvalue
    threshold = stability_threshold(decay, steps=steps, order=order)
    quiet = oscillation_threshold(decay, steps=steps, order=order)
    name: Name
    if math.isclose(a, threshold, rel_tol=EQUAL):
        name = "marginal"
    elif a > threshold:
        name = "unstable"
    else:
        name = "monotone" if a <= quiet * (1 + EQUAL) else "oscillating"
    return Regime(name, lag_factor(a, decay, steps=steps, order=order), a, threshold)


def lag_matrix(
    decay: float,
    lr: float,
    beta: float,
    fisher: torch.Tensor,
    *,
    period: int = 1,
    inner_steps: int = 1,
    order: Order = "new",
) -> torch.Tensor:
    """What one cycle multiplies the lag by, [d, d]; `lag_factor` is its eigenvalue.

    Args:
        decay: Of the anchor.
        lr: Step size.
        beta: Coefficient of the KL.
        fisher: Fisher matrix, [d, d].
        period: Iterations between two moves of the anchor.
        inner_steps: Gradient steps per iteration.
        order: ``"new"`` or ``"old"``; see the module.

    Raises:
        ValueError: as `regime`, or a matrix that is not square, symmetric and finite.
    """
    check_decay(decay)
    check_choice("order", order, ORDERS)
    steps = check_steps(period=period, inner_steps=inner_steps)
    pull = pull_of(lr, beta, fisher)
    one = torch.eye(len(pull), dtype=pull.dtype)
    if order == "new":
        return decay * torch.linalg.matrix_power(one - pull, steps)
    return torch.linalg.matrix_power(one - pull, steps - 1) @ (decay * one - pull)


def window(decay: float, lr: float, beta: float, fisher: torch.Tensor, k: int) -> Window:
    """The matrices of Lemma 4.1: k steps of the old order, with the anchor moving at every step.

    Args:
        decay: Of the anchor.
        lr: Step size.
        beta: Coefficient of the KL.
        fisher: Fisher matrix, [d, d].
        k: Steps.

    Returns:
        `Window`: D, S, M of shape [d, d] and the block matrix [3d, 3d] for (weights, lag, gradient).

    Raises:
        ValueError: as `lag_matrix`, or k below 1.

    Source: emapg2026, Lemma 4.1.
    """
    check_steps(k=k)
    d = lag_matrix(decay, lr, beta, fisher, order="old")
    pull = pull_of(lr, beta, fisher)
    one, nil = torch.eye(len(d), dtype=d.dtype), torch.zeros_like(d)
    power = torch.linalg.matrix_power(d, k)
    s = torch.linalg.solve(one - d, one - power)  # the eigenvalues of 1 - D are at least 1 - decay
    m = torch.linalg.solve(one - d, k * one - s)
    rows = (
        (one, -pull @ s, lr * k * one - lr * pull @ m),
        (nil, power, lr * s),
        (nil, nil, one),
    )
    return Window(d, s, m, torch.cat([torch.cat(row, 1) for row in rows]))


def simulate_lag(
    decay: float,
    lr: float,
    beta: float,
    fisher: torch.Tensor,
    gradient: torch.Tensor | None = None,
    *,
    cycles: int,
    period: int = 1,
    inner_steps: int = 1,
    order: Order = "new",
    start: torch.Tensor | None = None,
) -> LagPath:
    """The plain loop: policy and anchor, step by step, with a gradient and a Fisher matrix that stay.

    Args:
        decay: Of the anchor.
        lr: Step size.
        beta: Coefficient of the KL.
        fisher: Fisher matrix, [d, d].
        gradient: What is ascended beside the KL, [d]; none by default.
        cycles: Moves of the anchor; each comes with T = period * inner_steps gradient steps.
        period: Iterations between two moves of the anchor.
        inner_steps: Gradient steps per iteration.
        order: ``"new"`` or ``"old"``; see the module.
        start: Lag at the start, [d]; 0 by default.

    Returns:
        `LagPath`; a lag that grows too far becomes infinite or NaN and is returned as it is.

    Raises:
        ValueError: as `lag_matrix`, shapes that do not go together, or cycles below 1.

    Source: emapg2026, eqs (2), (5) and Algorithm 3, line 26.
    """
    check_decay(decay)
    check_choice("order", order, ORDERS)
    check_steps(cycles=cycles)
    steps = check_steps(period=period, inner_steps=inner_steps)
    pull = pull_of(lr, beta, fisher)
    push = torch.zeros(len(pull), dtype=pull.dtype)
    policy, anchor = push, push
    if gradient is not None:
        push = lr * vector_of("gradient", gradient, len(pull))
    if start is not None:
        anchor = policy - vector_of("start", start, len(pull))
    weights, lag, before = [policy], [policy - anchor], []
    for step in range(1, cycles * steps + 1):
        stepped = policy + push - pull @ (policy - anchor)
        if step % steps == 0:
            seen = stepped if order == "new" else policy
            before.append(seen - anchor)
            anchor = decay * anchor + (1 - decay) * seen
        policy = stepped
        weights.append(policy)
        lag.append(policy - anchor)
    return LagPath(torch.stack(lag), torch.stack(before), torch.stack(weights))
