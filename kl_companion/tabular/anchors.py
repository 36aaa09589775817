"""Learning with a KL penalty to a moving average of the policy, the anchor, along exact gradients.

The anchor is a moving average of the policy's parameters: its logits, or those of a network. Nothing is
sampled and no KL is replaced by a quadratic: what the lag does here is what the softmax does.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from kl_companion.checks import check_choice
from kl_companion.tabular.networks import Network, Scores
from kl_companion.tabular.worlds import Problem
from kl_companion.theory.ema.modes import ORDERS, Order, check_decay, check_rates, check_steps

Optimizer = Literal["sgd", "adam"]
Level = Literal["sequence", "token"]
OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "adam")
LEVELS: tuple[Level, ...] = ("sequence", "token")


class AnchoredPath(NamedTuple):
    """A policy and its anchor; every field has one entry per recorded number of gradient steps.

    Attributes:
        logits: Of the policy, [K, rows, vocab].
        anchor: Logits of the anchor, alike; where a step ends a cycle, after the anchor has moved.
        lag_norm: |parameters of the policy - those of the anchor|, [K]; the logits are the parameters of
            a table.
        kl: KL(policy || anchor) of whole sequences, [K].
        step_size: What a gradient has been multiplied with, one per parameter, [K, rows, vocab] or
            [K, d]: lr, or with Adam lr / (sqrt(v) + eps) with v the corrected second moment (infinite
            before the first step).
        steps: Gradient steps made, [K] int64.
        parameters: Of the policy, [K, rows, vocab] or [K, d].
    """

    logits: torch.Tensor
    anchor: torch.Tensor
    lag_norm: torch.Tensor
    kl: torch.Tensor
    step_size: torch.Tensor
    steps: torch.Tensor
    parameters: torch.Tensor


def follow_anchor(
    problem: Problem,
    *,
    decay: float,
    lr: float,
    beta: float,
    iterations: int,
    period: int = 1,
    inner_steps: int = 1,
    order: Order = "new",
    optimizer: Optimizer = "sgd",
    level: Level = "sequence",
    objective: Literal["reward"] | torch.Tensor | None = "reward",
    anchor: torch.Tensor | None = None,
    network: Network | None = None,
    record: int = 1,
) -> AnchoredPath:
    """Ascend E[reward] - beta KL(policy || anchor) along exact gradients, the anchor averaging the policy.

    Args:
        problem: One on-policy world; its policy is where both start, its reference is not used.
        decay: Of the anchor, in [0, 1): anchor <- decay * anchor + (1 - decay) * parameters.
        lr: Step size.
        beta: Coefficient of the KL; the anchor is a constant in its gradient.
        iterations: Outer iterations, of ``inner_steps`` gradient steps each.
        period: The anchor moves at the end of every ``period``-th iteration.
        inner_steps: Gradient steps per iteration, each at the policy that it finds.
        order: ``"new"``: the anchor moves after the last step of a cycle, towards the parameters that it made
            (Algorithm 3). ``"old"``: towards the parameters before that step (eq (2)); the step itself still
            sees the anchor from before.
        optimizer: ``"sgd"``, or ``"adam"`` with the other settings of torch.optim.Adam.
        level: ``"sequence"``: the gradient of the KL of whole sequences. ``"token"``: the sum of the KLs
            of next tokens, with the prefixes that are visited held fixed.
        objective: What is ascended beside the KL: ``"reward"``, the expected reward of the problem; a
            constant direction, shaped like the parameters; or None for the KL alone.
        anchor: Where the anchor starts, shaped like the parameters; at the policy by default.
        network: What makes the logits; its parameters [d] are then what is learned and averaged. By
            default the parameters are the table of logits, [rows, vocab].
        record: The path is kept at the start, after every ``record`` gradient steps and after the last.

    Returns:
        `AnchoredPath`.

    Raises:
        ValueError: a stack of worlds or an off-policy one, a decay outside [0, 1), an lr that is not
            positive, a negative beta, counts below 1, an unknown name, shapes that do not go together, or
            a path that stops being finite.

    Source: emapg2026, Algorithm 3 and eqs (2), (29).
    """
    cycle = _check(problem, decay, lr, beta, iterations, period, inner_steps, order, optimizer, level, record)
    scores = _table if network is None else network.logits
    theta = (problem.logits if network is None else network.parameters).detach().double().clone()
    theta.requires_grad_()
    held = theta.detach().clone() if anchor is None else _like(theta, "anchor", anchor)
    direction = _like(theta, "objective", objective) if isinstance(objective, torch.Tensor) else None
    if direction is None and objective is not None:
        check_choice("objective", objective, ("reward",))
    # SGD adds the gradient itself: the optimizer is needed for Adam's moments only
    adam = torch.optim.Adam([theta], lr=lr) if optimizer == "adam" else None
    last = iterations * inner_steps
    kept = [_record(problem, scores, theta, held, _step_size(adam, theta, lr))]
    steps = [0]
    for step in range(1, last + 1):
        found = theta.detach().clone()
        logits = scores(theta)
        ascended = -beta * _kl(problem, logits, scores(held).detach(), level)
        if isinstance(objective, str):
            ascended = ascended + _reward(problem, logits)
        (ascent,) = torch.autograd.grad(ascended, theta)
        if direction is not None:
            ascent = ascent + direction
        if adam is None:
            with torch.no_grad():
                theta.add_(ascent, alpha=lr)
        else:
            theta.grad = -ascent
            adam.step()
        if step % cycle == 0:
            held = decay * held + (1 - decay) * (theta.detach() if order == "new" else found)
        if not theta.isfinite().all():
            raise ValueError(
                f"the policy's parameters are not finite after {step} gradient steps, expected numbers: "
                f"lower lr={lr} or beta={beta}"
            )
        if step % record == 0 or step == last:
            steps.append(step)
            kept.append(_record(problem, scores, theta, held, _step_size(adam, theta, lr)))
    path, anchors, lag, kl, size, parameters = (torch.stack(x) for x in zip(*kept, strict=True))
    return AnchoredPath(path, anchors, lag, kl, size, torch.tensor(steps), parameters)


def _table(parameters: torch.Tensor) -> torch.Tensor:
    return parameters


def _kl(problem: Problem, logits: torch.Tensor, anchor: torch.Tensor, level: Level) -> torch.Tensor:
    """KL(policy || anchor) of whole sequences, or with the visits of its next tokens held fixed."""
    if level == "sequence":
        logp, other = problem.token_logp(logits).sum(-1), problem.token_logp(anchor).sum(-1)
        return (logp.exp() * (logp - other)).sum()
    logp = logits.log_softmax(-1)
    each = (logp.exp() * (logp - anchor.log_softmax(-1))).sum(-1)[problem.rows] * problem.completion_mask
    return (problem.probabilities(logits).unsqueeze(-1) * each).sum()


def _reward(problem: Problem, logits: torch.Tensor) -> torch.Tensor:
    return (problem.token_logp(logits).sum(-1).exp() * problem.rewards).sum()


def _step_size(adam: torch.optim.Adam | None, theta: torch.Tensor, lr: float) -> torch.Tensor:
    if adam is None:
        return torch.full_like(theta, lr, requires_grad=False)
    state, group = adam.state[theta], adam.param_groups[0]
    if not state:
        return torch.full_like(theta, torch.inf, requires_grad=False)
    v = state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))
    size: torch.Tensor = lr / (v.sqrt() + group["eps"])
    return size


@torch.no_grad()
def _record(
    problem: Problem, scores: Scores, theta: torch.Tensor, held: torch.Tensor, size: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    logits, anchor = scores(theta).clone(), scores(held)
    kl = _kl(problem, logits, anchor, "sequence")
    return logits, anchor, (theta - held).norm(), kl, size, theta.clone()


def _like(theta: torch.Tensor, name: str, x: torch.Tensor) -> torch.Tensor:
    if x.shape != theta.shape:
        raise ValueError(
            f"{name} has shape {list(x.shape)}, expected {list(theta.shape)} like the parameters"
        )
    if not x.isfinite().all():
        raise ValueError(f"{name} is not finite, expected numbers")
    return x.detach().double().clone()


def _check(
    problem: Problem,
    decay: float,
    lr: float,
    beta: float,
    iterations: int,
    period: int,
    inner_steps: int,
    order: str,
    optimizer: str,
    level: str,
    record: int,
) -> int:
    """Gradient steps per move of the anchor; ValueError for what `follow_anchor` does not take."""
    if problem.logits.ndim != 2:
        raise ValueError(f"got a stack of {len(problem.logits)} worlds, expected one world")
    if problem.behavior_logits is not None:
        raise ValueError("the problem has a behavior policy of its own, expected an on-policy world")
    check_decay(decay)
    check_rates(lr, beta)
    check_steps(iterations=iterations, record=record)
    check_choice("order", order, ORDERS)
    check_choice("optimizer", optimizer, OPTIMIZERS)
    check_choice("level", level, LEVELS)
    return check_steps(period=period, inner_steps=inner_steps)
