"""The expected update of a loss on groups of a given size, in large batches, and over several steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss, expected_gradient
from kl_companion.tabular.expectations import check_differentiable, checked_scalar, groups_of
from kl_companion.tabular.populations import Population, large_batches
from kl_companion.tabular.worlds import Problem

_FURTHER = 4  # doublings of a batch in which some kind of answer is rare
# of a rollout and the log-probs of the policy before the first update on it
StepLoss = Callable[[Rollout, torch.Tensor], torch.Tensor]


def expected_update(loss: Loss, at: Population, group: int | None) -> torch.Tensor:
    """Minus the expected gradient of a loss, [rows, vocab]: what a step adds to the logits.

    Args:
        loss: A function of the answers to one prompt, with rewards.
        at: The prompt.
        group: Answers per batch, all groups enumerated; None for the limit of large batches. A loss that is a
            sum over a large batch is divided by the number of answers.

    Raises:
        ValueError: as `kl_companion.tabular.expectation`; a loss that has no limit in large batches.
    """
    if group is None:
        limit = large_batches(loss, at, further=_FURTHER)
        if not limit.settles:
            raise ValueError(
                "the loss has no limit in large batches, expected one whose gradient settles as a batch grows"
            )
        return -limit.gradient
    return -expected_gradient(loss, at.problem, group_size=group)


def expected_updates(
    loss: StepLoss, problem: Problem, group: int, *, steps: int, rate: float
) -> torch.Tensor:
    """What several updates on one batch add to the logits on average, [rows, vocab], divided by steps x rate.

    Every batch is followed on its own: the second gradient is that of the policy after the first. One step is
    `expected_update`.

    Args:
        loss: A function of the answers and of the log-probs of the policy before the first update, [batch,
            seq], as `Recipe.loss`.
        problem: The prompt.
        group: Answers per batch.
        steps: Updates on one batch.
        rate: Step size of plain gradient descent on the logits.

    Raises:
        ValueError: fewer than one step, or a rate that is not positive; as
            `kl_companion.tabular.expectation`.
    """
    if steps < 1 or not 0 < rate < math.inf:
        raise ValueError(f"steps={steps}, rate={rate}: expected at least one step and a positive rate")

    def on(old_logp: torch.Tensor) -> Loss:
        return lambda rollout: loss(rollout, old_logp)

    start = problem.logits.detach()
    stale = problem._replace(behavior_logits=problem.sampled_from.detach())
    groups = groups_of(lambda ro: loss(ro, ro.logp.detach()), stale, start.clone().requires_grad_(), group)
    before = problem.token_logp(start)
    total = torch.zeros_like(start)
    for which, p in zip(groups.sequences[groups.members], groups.chance, strict=True):
        theta, of_batch = start, on(before[which])
        for _ in range(steps):
            leaf = theta.clone().requires_grad_()
            x = checked_scalar(of_batch, stale.rollout(leaf, which))
            check_differentiable(x)
            (gradient,) = torch.autograd.grad(x, leaf, materialize_grads=True)
            theta = theta - rate * gradient
            total -= p * gradient
    return total / steps
