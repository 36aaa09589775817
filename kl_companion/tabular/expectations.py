"""Exact expectations of any loss, by enumeration, and descent along them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_companion.rollout import Rollout
from kl_companion.tabular.groups import multisets
from kl_companion.tabular.worlds import MAX_EVALUATIONS, Problem

_PROBES = 3  # groups whose answers are exchanged, to see whether the order matters
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


def checked_scalar(loss_fn: Loss, rollout: Rollout) -> torch.Tensor:
    """The loss on a batch; ValueError unless it is one number."""
    loss = loss_fn(rollout)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ValueError(f"the loss returned {got}, expected a scalar tensor")
    if loss.isnan():
        raise ValueError("the loss is NaN on an enumerated batch, expected a number")
    return loss.reshape(())


def _enumerate(
    loss_fn: Loss, problem: Problem, logits: torch.Tensor, group_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probability and loss of every group of sequences that can be sampled, [groups] each."""
    count = len(problem.sequences)
    if problem.logits.ndim != 2:
        raise ValueError(f"got a stack of {len(problem.logits)} worlds, expected one world")
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}, expected at least 1")
    probability = problem.probabilities(logits)
    possible = probability.nonzero().squeeze(-1)
    groups, chance = multisets(probability[possible], group_size)
    rollout = problem.rollout(logits, possible)
    if group_size > 1 and _minds_the_order(loss_fn, rollout, groups, logits):
        if count**group_size > MAX_EVALUATIONS:
            raise ValueError(
                f"the loss depends on the order of the answers, and {count} sequences in groups of "
                f"{group_size} are {count**group_size} evaluations, expected at most {MAX_EVALUATIONS}: take "
                "a smaller problem or group"
            )
        groups = torch.cartesian_prod(*[torch.arange(len(possible))] * group_size)
        chance = probability[possible][groups].prod(-1)
    losses = [checked_scalar(loss_fn, batch) for batch in rollout.batches(groups.tolist())]
    return chance, torch.stack(losses)


def _minds_the_order(loss_fn: Loss, rollout: Rollout, groups: torch.Tensor, logits: torch.Tensor) -> bool:
    """Whether a loss or its gradient changes with the order of its answers, on the most different groups.

    Advantages that sum to zero leave a loss of 0 in every order, and a rounding of it: the gradient decides.
    """
    different = torch.tensor([len(set(g)) for g in groups.tolist()])
    for group in groups[different.argsort(descending=True, stable=True)[:_PROBES]]:
        orders = [group, group.roll(1), group.flip(0)]
        losses = [checked_scalar(loss_fn, b) for b in rollout.batches([o.tolist() for o in orders])]
        seen = torch.stack([_value_and_gradient(loss, logits) for loss in losses])
        if (seen.amax(0) - seen.amin(0)).max() > _ROUNDING * seen.abs().max():
            return True
    return False


def _value_and_gradient(loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The loss and its slopes in the logits as one vector; the loss alone where it has none."""
    value = loss.detach().reshape(1).double()
    if not loss.requires_grad:
        return value
    (slope,) = torch.autograd.grad(loss, logits, retain_graph=True, allow_unused=True)
    return value if slope is None else torch.cat([value, slope.flatten()])


def expectation(
    loss_fn: Loss, problem: Problem, *, logits: torch.Tensor | None = None, group_size: int = 1
) -> Expectation:
    """Expected value, magnitude and gradient of a loss, in one enumeration.

    The probabilities are weights without gradient: the gradient is what back-propagating sampled
    losses gives on average.

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
    if not total.requires_grad:
        raise ValueError(
            "the loss has no gradient with respect to the policy, expected a function of logp that is "
            "not detached"
        )
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
