"""The expected update of a loss on groups of a given size, in large batches, and over several steps."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss, expected_gradient
from kl_companion.tabular.groups import multisets
from kl_companion.tabular.populations import Population, large_batches
from kl_companion.tabular.worlds import Problem

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
        ValueError: as `kl_companion.tabular.expectation`.
    """
    if group is None:
        return -large_batches(loss, at).gradient
    return -expected_gradient(loss, at.problem, group_size=group)


def expected_updates(
    loss: StepLoss, problem: Problem, group: int, *, steps: int, rate: float
) -> torch.Tensor:
    """What several updates on one batch add to the logits on average, [rows, vocab], over steps x rate.

    Every batch is followed on its own: the second gradient is that of the policy after the first.

    Args:
        loss: A function of the answers and of the log-probs of the policy before the first update.
        problem: The prompt.
        group: Answers per batch.
        steps: Updates on one batch.
        rate: Step size of plain gradient descent on the logits.

    Raises:
        ValueError: fewer than one step, or a rate that is not positive.
    """
    if steps < 1 or not rate > 0:
        raise ValueError(f"steps={steps}, rate={rate}: expected at least one step and a positive rate")
    start = problem.logits.detach()
    sampler = problem.sampled_from
    stale = problem._replace(behavior_logits=sampler)
    probability = problem.probabilities()
    possible = probability.nonzero().squeeze(-1)
    drawn, chance = multisets(probability[possible], group)
    before = problem.token_logp(start)
    total = torch.zeros_like(start)
    for which, p in zip(possible[drawn], chance, strict=True):
        theta = start
        for _ in range(steps):
            leaf = theta.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(stale.rollout(leaf, which), before[which]), leaf)
            theta = theta - rate * gradient
        total += p * (theta - start)
    return total / (steps * rate)
