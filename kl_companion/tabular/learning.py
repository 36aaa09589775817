"""Learning on bandits: gradient descent on sampled or exact gradients, many worlds at once.

One step costs a handful of tensor operations for all worlds together, so that a grid of coefficients,
step sizes and repeats is one batch: stack a world as often as there are settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kl_companion.checks import check_choice
from kl_companion.estimators.registry import Estimator, get_estimator, sampled_estimator
from kl_companion.tabular.draws import BASELINES, SINGLE_PLACEMENTS, Baseline, SinglePlacement
from kl_companion.tabular.worlds import Problem


class Learning(NamedTuple):
    """The path of a policy.

    Attributes:
        steps: Number of updates made when ``logp`` was kept, [K] int64, from 0 to the last.
        logp: Log-probs of the policy, [K, worlds, vocab]; [K, vocab] for one world.
    """

    steps: torch.Tensor
    logp: torch.Tensor


def learn(
    problem: Problem,
    estimator: str | Estimator = "k2",
    *,
    placement: SinglePlacement = "loss",
    baseline: Baseline | None = None,
    beta: float | torch.Tensor = 1.0,
    n: int | None = 4,
    steps: int,
    lr: float | torch.Tensor = 1.0,
    seed: int = 0,
    rewards: bool = False,
    record: int | Sequence[int] = 1,
) -> Learning:
    """Descend beta times an estimate of the KL on a bandit, minus the reward if wanted.

    An update is theta <- theta + lr (l - beta g): g is the mean of n sampled gradients of the estimate, l
    (with ``rewards``) the REINFORCE gradient of the same n samples with the leave-one-out baseline. With
    ``n=None`` both are replaced by their expectations. The same seed draws with the same random numbers for
    every estimator, so that runs can be compared in pairs.

    Args:
        problem: A bandit, or a stack of bandits, on-policy.
        estimator: A sampled estimator, by name or as an `Estimator`.
        placement: ``"loss"`` differentiates the estimate; ``"reward"`` multiplies its detached value by the
            score.
        baseline: Subtracted from the estimate, in the reward only: the ``"mean"`` of the n estimates, or
            the mean of the others (``"leave_one_out"``).
        beta: Coefficient of the estimate, a number or one per world.
        n: Samples per step, or None for the expected gradient.
        steps: Updates.
        lr: Step size, a number or one per world.
        seed: Of the generator; the same seed gives the same bytes.
        rewards: Also ascend the expected reward.
        record: The policy is kept before the first update, after every ``record`` updates (or after each of
            these numbers of updates), and after the last one.

    Raises:
        ValueError: more than one decision, an off-policy problem, unknown names, n below 1 (below 2 with
            leave-one-out or rewards), a baseline without samples or outside the reward, steps below 1,
            a record outside 1 to steps, a beta or lr of another shape, or a policy that stops being finite.

    Source: tang2025pitfalls, section 3.1 and appendix C.
    """
    entry = get_estimator(estimator)
    stacked = problem.logits.ndim == 3
    _check(problem, entry, placement, baseline, n, steps, record, rewards)
    theta = problem.logits.detach().squeeze(-2).reshape(-1, problem.logits.shape[-1]).clone()
    ref_logp = problem.ref_logits.log_softmax(-1).reshape(theta.shape)
    gains = problem.rewards.reshape(theta.shape)
    scale, rate = (_per_world(name, x, len(theta)) for name, x in (("beta", beta), ("lr", lr)))
    generator = torch.Generator().manual_seed(seed)
    wanted = {*(range(record, steps, record) if isinstance(record, int) else record), steps}
    kept = [theta.log_softmax(-1)]
    for step in range(1, steps + 1):
        logp = theta.log_softmax(-1)
        policy = logp.exp()
        if n is None:
            cost = scale * _coefficient(entry, placement, logp, ref_logp)
            cost = policy * (cost - gains if rewards else cost)
            direction = cost - policy * cost.sum(-1, keepdim=True)
        else:
            drawn = _draw(policy, n, generator)
            cost = _coefficient(entry, placement, logp.gather(-1, drawn), ref_logp.gather(-1, drawn))
            if baseline is not None:
                cost = _centered(cost, baseline)
            cost = scale * cost
            if rewards:
                cost = cost - _centered(gains.gather(-1, drawn), "leave_one_out")
            cost = cost / n
            direction = (-policy * cost.sum(-1, keepdim=True)).scatter_add(-1, drawn, cost)
        theta = theta - rate * direction
        if step in wanted:
            if not theta.isfinite().all():
                raise ValueError(
                    f"the policy's logits are not finite after {step} updates: expected a lower lr or beta"
                )
            kept.append(theta.log_softmax(-1))
    path = torch.stack(kept)
    return Learning(torch.tensor([0, *sorted(wanted)]), path if stacked else path.squeeze(1))


def _coefficient(
    entry: Estimator, placement: SinglePlacement, logp: torch.Tensor, ref_logp: torch.Tensor
) -> torch.Tensor:
    """What multiplies the score of each sample: the derivative of the estimate, or its value."""
    if placement == "reward":
        with torch.no_grad():
            value: torch.Tensor = entry.fn(logp, ref_logp)
        return value
    leaf = logp.detach().requires_grad_()
    (slope,) = torch.autograd.grad(entry.fn(leaf, ref_logp).sum(), leaf)
    return slope


def _draw(policy: torch.Tensor, n: int, generator: torch.Generator) -> torch.Tensor:
    """n arms per world, by inverting the distribution function; an arm of probability 0 is never drawn."""
    edges = policy.cumsum(-1)
    u = torch.rand(len(policy), n, generator=generator, dtype=policy.dtype)
    return torch.searchsorted(edges, u * edges[:, -1:], right=True).clamp(max=policy.shape[-1] - 1)


def _centered(x: torch.Tensor, baseline: Baseline) -> torch.Tensor:
    """x minus the mean of its row, or minus the mean of the others in the row; [worlds, n]."""
    apart = x - x.mean(-1, keepdim=True)
    n = x.shape[-1]
    return apart if baseline == "mean" else apart * (n / (n - 1))


def _per_world(name: str, x: float | torch.Tensor, worlds: int) -> torch.Tensor:
    """[1] or [worlds] numbers as a column; beta may be 0, a step size may not."""
    value = torch.as_tensor(x, dtype=torch.float64)
    if value.ndim > 1 or (value.ndim == 1 and len(value) not in (1, worlds)):
        raise ValueError(f"{name} has shape {list(value.shape)}, expected a number or [{worlds}]")
    if not value.isfinite().all() or (name == "lr" and not (value > 0).all()) or (value < 0).any():
        wanted = "positive numbers" if name == "lr" else "finite numbers of at least 0"
        raise ValueError(f"{name} is {x}, expected {wanted}")
    return value.reshape(-1, 1)


def _check(
    problem: Problem,
    entry: Estimator,
    placement: str,
    baseline: str | None,
    n: int | None,
    steps: int,
    record: int | Sequence[int],
    rewards: bool,
) -> None:
    if problem.logits.shape[-2] != 1 or problem.sequences.shape[-1] != 1:
        raise ValueError(
            f"the problem has {problem.logits.shape[-2]} rows of logits, expected 1: learning is for bandits"
        )
    if problem.behavior_logits is not None:
        raise ValueError("the problem has a behavior policy of its own, expected an on-policy bandit")
    sampled_estimator(entry)
    check_choice("placement", placement, SINGLE_PLACEMENTS)
    if baseline is not None:
        check_choice("baseline", baseline, BASELINES)
        if placement != "reward" or n is None:
            raise ValueError(
                f"placement={placement!r}, n={n} got baseline={baseline!r}, expected 'reward' and a "
                "number of samples: a baseline is subtracted from sampled costs"
            )
    least = 2 if rewards or baseline is not None else 1
    if n is not None and n < least:
        raise ValueError(
            f"n is {n}, expected at least {least} with baseline={baseline!r}, rewards={rewards}: "
            "leaving one out needs another"
        )
    every = [record] if isinstance(record, int) else list(record)
    if steps < 1 or min(every, default=1) < 1 or (max(every, default=1) > steps and every != [record]):
        raise ValueError(
            f"steps={steps}, record={record}: expected at least one step, and records between 1 and steps"
        )
