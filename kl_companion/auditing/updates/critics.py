"""Critics of worlds whose answers are all known, and the sums of generalized advantage estimation (GAE)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch

from kl_companion.rollout import Rollout, masked
from kl_companion.rollout.aggregation import credit
from kl_companion.tabular import Problem

Critic = Literal["exact", "reward"]
CRITICS: tuple[Critic, ...] = get_args(Critic)
Values = Callable[[Rollout], torch.Tensor]


def at_last(x: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """Return numbers of answers, [batch], at the last own token of each, [batch, seq]."""
    last = completion_mask.bool() & (completion_mask.bool().flip(-1).cumsum(-1).flip(-1) == 1)
    return torch.where(last, x.unsqueeze(-1), 0.0)


def generalized(
    x: torch.Tensor, values: torch.Tensor, completion_mask: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    """Return the discounted sum of everything ahead of a token, values of the next tokens mixed in.

    Minus its own value that is the advantage of GAE: the sum over k of (gamma lam)^k times the error of one
    step, x + gamma (value of the next own token) - value, k own tokens ahead.

    Args:
        x: [batch, seq], reward of every token.
        values: [batch, seq], what a critic predicts before every token.
        completion_mask: [batch, seq]; tokens outside are skipped, and behind the last one the value is 0.
        gamma: Discount of rewards, from 0 to 1.
        lam: 1 for the return alone, 0 for one step and the value of the next token.

    Returns:
        [batch, seq].
    """
    # own tokens first, one behind the other
    order = torch.argsort((~completion_mask.bool()).int(), stable=True)
    own, rewards, ahead = (y.gather(-1, order) for y in (completion_mask, x, masked(values, completion_mask)))
    behind = torch.nn.functional.pad(ahead[:, 1:], (0, 1))
    sums = credit(rewards + gamma * (1 - lam) * behind, own, discount=gamma * lam)
    return torch.zeros_like(sums).scatter(-1, order, sums)


def critic_of(problem: Problem, returns: torch.Tensor) -> Values:
    """Return the expected return of every prefix under the policy that samples, as a critic of the world.

    Args:
        problem: A world, not a stack of them.
        returns: [count, length], ahead of every token of its answers.

    Returns:
        A function of answers of that world, [batch, seq]; it raises ValueError for others.
    """
    weights = problem.completion_mask * problem.probabilities().unsqueeze(-1)
    sums, chances = (
        torch.zeros(len(problem.logits), dtype=x.dtype).index_add(0, problem.rows.flatten(), x.flatten())
        for x in (weights * returns, weights)
    )
    table = torch.where(chances > 0, sums / chances, 0.0)[problem.rows]
    listed = torch.where(problem.completion_mask.bool(), problem.sequences, -1)

    def values(rollout: Rollout) -> torch.Tensor:
        answers = torch.where(rollout.completion_mask.bool(), rollout.tokens, -1)
        if answers.shape[1] != listed.shape[1] or not (same := _equal(answers, listed)).any(-1).all():
            raise ValueError("got answers that the critic's world has not, expected those of one problem")
        return table[same.int().argmax(-1)]

    return values


def _equal(answers: torch.Tensor, listed: torch.Tensor) -> torch.Tensor:
    """Return which answer is which, [batch, count]."""
    return (answers.unsqueeze(1) == listed).all(-1)
