"""Exact expectations of any loss, by enumeration, and descent along them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch

from kl_companion.rollout import Rollout
from kl_companion.tabular.worlds import MAX_EVALUATIONS, Problem

_ROUNDING = 1e-12
Loss = Callable[[Rollout], torch.Tensor]


class Expectation(NamedTuple):
    """Exact expectations of a loss.

    Attributes:
        value: Expected loss.
        magnitude: Expected absolute loss.
        gradient: Expected gradient with respect to the policy's logits, [rows, vocab].
    """

    value: float
    magnitude: float
    gradient: torch.Tensor


def multisets(probability: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every group of n independent draws without its order, and the chance of each.

    Args:
        probability: Of every outcome, [count].
        n: Draws per group.

    Returns:
        Indices of outcomes in ascending order, [groups, n], and chances that sum to 1, [groups].

    Raises:
        ValueError: n below 1, or more than 1e5 groups.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    count = len(probability)
    groups = math.comb(count + n - 1, n)
    if groups > MAX_EVALUATIONS:
        raise ValueError(
            f"{count} sequences in groups of {n} are {groups} multisets, expected at most {MAX_EVALUATIONS}: "
            "take a smaller problem or group"
        )
    drawn = torch.tensor(list(combinations_with_replacement(range(count), n)))
    often = torch.nn.functional.one_hot(drawn, count).sum(1).to(probability.dtype)
    ways = math.lgamma(n + 1) - torch.lgamma(often + 1).sum(-1)
    # 0 log 0 is 0: a sequence of probability zero rules out only the groups that contain it
    log_chance = torch.xlogy(often, probability.unsqueeze(0)).sum(-1)
    return drawn, (ways + log_chance).exp()


def checked_scalar(loss_fn: Loss, rollout: Rollout) -> torch.Tensor:
    """The loss on a batch; ValueError unless it is one number."""
    loss = loss_fn(rollout)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ValueError(f"the loss returned {got}, expected a scalar tensor")
    if loss.isnan():
        raise ValueError("the loss is NaN on an enumerated batch, expected a number")
    return loss.reshape(())


def check_differentiable(loss: torch.Tensor) -> None:
    """ValueError for a loss that left the graph."""
    if not loss.requires_grad:
        raise ValueError(
            "the loss has no gradient with respect to the policy, expected a function of logp that is "
            "not detached"
        )


class Groups(NamedTuple):
    """Every group of answers that can be sampled.

    Attributes:
        rollout: Every sequence that can be sampled, once, [possible, ...].
        sequences: Their numbers in the problem, [possible].
        members: Rows of the rollout, [groups, n].
        chance: Of every group, [groups].
    """

    rollout: Rollout
    sequences: torch.Tensor
    members: torch.Tensor
    chance: torch.Tensor


def groups_of(loss_fn: Loss, problem: Problem, logits: torch.Tensor, group_size: int) -> Groups:
    """The groups that a loss has to be evaluated on: without their order, or in every order if it minds that.

    Raises:
        ValueError: a stack of worlds, a size below 1, more than 1e5 evaluations; the loss is no scalar or
            NaN.
    """
    if problem.logits.ndim != 2:
        raise ValueError(f"got a stack of {len(problem.logits)} worlds, expected one world")
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}, expected at least 1")
    probability = problem.probabilities(logits)
    possible = probability.nonzero().squeeze(-1)
    probability, count = probability[possible], len(possible)
    members, chance = multisets(probability, group_size)
    rollout = problem.rollout(logits, possible)
    if group_size > 1 and _minds_the_order(loss_fn, rollout, group_size):
        if count**group_size > MAX_EVALUATIONS:
            raise ValueError(
                f"the loss depends on the order of the answers, and {count} sequences in groups of "
                f"{group_size} are {count**group_size} evaluations, expected at most {MAX_EVALUATIONS}: take "
                "a smaller problem or group"
            )
        members = torch.cartesian_prod(*[torch.arange(count)] * group_size)
        chance = probability[members].prod(-1)
    return Groups(rollout, possible, members, chance)


def _enumerate(
    loss_fn: Loss, problem: Problem, logits: torch.Tensor, group_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probability and loss of every group of sequences that can be sampled, [groups] each."""
    rollout, _, members, chance = groups_of(loss_fn, problem, logits, group_size)
    return chance, torch.stack([checked_scalar(loss_fn, b) for b in rollout.batches(members.tolist())])


def _minds_the_order(loss_fn: Loss, rollout: Rollout, n: int) -> bool:
    """Whether a loss, or what it does to a row, changes with the order of the rows of some groups.

    Every row is in two of the groups, once with its neighbors and once with rows far from it. A swap and a
    rotation make all orders. The slopes are looked at because the value may say nothing: exp(logp -
    logp.detach()) is 1 whatever stands in front of it.
    """
    count = len(rollout.logp)
    runs = -(-count // n)
    every = torch.arange(runs * n) % count
    swapped = torch.arange(n)
    swapped[:2] = swapped[:2].flip(0)
    for group in torch.cat([every.view(runs, n), every.view(n, runs).T]).unique(dim=0):
        value, slopes = _slopes(loss_fn, rollout, group)
        for order in (swapped, torch.arange(n).roll(1)):
            other, others = _slopes(loss_fn, rollout, group[order])
            if _differ(value, other) or any(
                _differ(a[order], b) for a, b in zip(slopes, others, strict=True)
            ):
                return True
    return False


def _slopes(
    loss_fn: Loss, rollout: Rollout, group: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """The loss on one group, and its gradient by what the rollout holds of the policy."""
    (batch,) = rollout.batches([group.tolist()])
    loss = checked_scalar(loss_fn, batch)
    if not loss.requires_grad:
        return loss, ()
    of = [x for x in (batch.logp, batch.logits) if x is not None]
    found = torch.autograd.grad(loss, of, allow_unused=True, materialize_grads=True)
    return loss.detach(), found


def _differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Beyond rounding, which is that of rewards and log-ratios of about 1."""
    return bool((a - b).abs().max() > _ROUNDING * max(1.0, a.abs().max().item()))


def expectation(
    loss_fn: Loss, problem: Problem, *, logits: torch.Tensor | None = None, group_size: int = 1
) -> Expectation:
    """Expected value, magnitude and gradient of a loss, in one enumeration.

    The probabilities are weights without gradient: the gradient is what back-propagating sampled
    losses gives on average. Groups are taken without their order, unless the loss depends on it.

    Args:
        loss_fn: A function of a `Rollout` of ``group_size`` sequences that returns a scalar.
        problem: The world.
        logits: The policy, [rows, vocab]; the problem's own by default.
        group_size: Sequences per batch; more than one for losses that couple a group.

    Raises:
        ValueError: not a scalar, NaN, no gradient, or more than 1e5 evaluations.
    """
    theta = (problem.logits if logits is None else logits).detach().clone().requires_grad_()
    weights, losses = _enumerate(loss_fn, problem, theta, group_size)
    total = (weights * losses).sum()
    check_differentiable(total)
    (gradient,) = torch.autograd.grad(total, theta, allow_unused=True)
    magnitude = (weights * losses.detach().abs()).sum().item()
    return Expectation(total.item(), magnitude, torch.zeros_like(theta) if gradient is None else gradient)


def expected_value(
    loss_fn: Loss, problem: Problem, *, logits: torch.Tensor | None = None, group_size: int = 1
) -> float:
    """E[loss] over groups of independently sampled sequences; arguments and errors as `expectation`.

    A loss without gradient is welcome here.
    """
    with torch.no_grad():
        theta = problem.logits if logits is None else logits
        weights, losses = _enumerate(loss_fn, problem, theta, group_size)
        return (weights * losses).sum().item()


def expected_gradient(
    loss_fn: Loss, problem: Problem, *, logits: torch.Tensor | None = None, group_size: int = 1
) -> torch.Tensor:
    """E[gradient of the loss], [rows, vocab]; arguments and errors as `expectation`."""
    return expectation(loss_fn, problem, logits=logits, group_size=group_size).gradient


def descend(
    loss_fn: Loss, problem: Problem, *, steps: int, lr: float, group_size: int = 1
) -> list[torch.Tensor]:
    """Follow the exact expected gradient; the policy's logits before, and after each step.

    Raises:
        ValueError: steps below 1, a step size that is not positive, or logits that stop being finite.
    """
    if steps < 1 or not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"steps={steps}, lr={lr}: expected at least one step and a positive step size")
    path = [problem.logits.detach().clone()]
    for step in range(steps):
        following = path[-1] - lr * expected_gradient(
            loss_fn, problem, logits=path[-1], group_size=group_size
        )
        if not following.isfinite().all():
            raise ValueError(f"the policy's logits are not finite after step {step + 1}: lower lr={lr}")
        path.append(following)
    return path
