"""Preferences of groups, and GRPO's objective as eq (1) prints it, group by group (vojnovic2025alignment).

The preference of an answer over its group is its expected standardized reward; the other answers are drawn
independently from one policy.

Every group is a list of answers; every answer of it has its own reward. Nothing is simplified here, so that
the formulas of the paper can be held against it.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground.best_policies import Objective
from kl_book.ledger.claims.ground.groups import groups, ordered, standardized_or_zero
from kl_book.ledger.claims.ground.sums import exact, forward_kl, mean
from kl_book.ledger.claims.ground.world import Enumeration


@cache
def ways_to_draw(kinds: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All ways to draw ``number`` of ``kinds`` without order.

    Returns:
        How many of each kind, [ways, kinds], and how many orders each way has, [ways].
    """
    bars = itertools.combinations(range(number + kinds - 1), kinds - 1)
    counts = []
    for places in bars:
        ends = (-1, *places, number + kinds - 1)
        counts.append([b - a - 1 for a, b in itertools.pairwise(ends)])
    orders = [math.factorial(number) // math.prod(math.factorial(n) for n in row) for row in counts]
    return torch.tensor(counts, dtype=torch.float64), torch.tensor(orders, dtype=torch.float64)


class RandomRewards(NamedTuple):
    """Rewards of ``count`` answers.

    Attributes:
        levels: Rewards that every answer may get, [count, levels].
        chances: How likely each of them is, [count, levels].
    """

    levels: torch.Tensor
    chances: torch.Tensor

    @property
    def expected(self) -> torch.Tensor:
        """r(o): the mean of the reward of every answer, [count]."""
        return (self.levels * self.chances).sum(-1)

    @property
    def wins(self) -> torch.Tensor:
        """P(o > o'): how likely the reward of o is larger than that of an independent o', [count, count]."""
        larger = (self.levels[:, None, :, None] > self.levels[None, :, None, :]).double()
        return torch.einsum("oplm,ol,pm->op", larger, self.chances, self.chances)

    def drawn(self, policy: torch.Tensor) -> torch.Tensor:
        """Probability of every level of every answer of a policy, [count * levels]."""
        return (policy[:, None] * self.chances).flatten()

    def deviation(self, policy: torch.Tensor) -> torch.Tensor:
        """sigma(policy): the standard deviation of the reward of an answer of a policy, a scalar."""
        levels, p = self.levels.flatten(), self.drawn(policy)
        return (p @ (levels - p @ levels).square()).sqrt()

    def preference(self, policy: torch.Tensor, size: int | None) -> torch.Tensor:
        """P_G(o | policy) of every answer o: E[A_1 | o_1 = o], the other G - 1 of ``policy``, [count].

        Exact, and differentiable in ``policy``.

        Args:
            policy: Probabilities of the answers that fill the group, [count].
            size: G, at least 2; None is the limit of large groups, (r(o) - E r) / sigma(policy).
        """
        if size is None:
            return (self.expected - policy @ self.expected) / self.deviation(policy)
        levels, p = self.levels.flatten(), self.drawn(policy)
        counts, orders = ways_to_draw(len(levels), size - 1)
        weight = orders * (p.clamp(min=0.0) ** counts).prod(-1)
        own = levels[:, None]
        mean = (own + counts @ levels) / size  # [levels of all, ways]
        square = ((levels - mean[..., None]).square() * counts).sum(-1) + (own - mean).square()
        spread = (square / size).sqrt()
        advantage = ((own - mean) / spread).where(spread > 1e-12, 0.0)
        return ((advantage @ weight).reshape(self.chances.shape) * self.chances).sum(-1)


def certain(rewards: torch.Tensor) -> RandomRewards:
    """One reward per answer, [count]."""
    return RandomRewards(rewards[:, None], torch.ones_like(rewards)[:, None])


# eq (1), group by group


def exact_in_policy(w: Enumeration, f: Objective) -> tuple[float, torch.Tensor]:
    """Value and exact gradient, [rows, vocab], of a function of the probabilities of all answers."""
    return exact(lambda p, q: f(p.exp()), w.problem)


def policy_mean(w: Enumeration, x: torch.Tensor) -> tuple[float, torch.Tensor]:
    """E_pi[x] of a number per answer, and its exact gradient, [rows, vocab]."""
    return exact_in_policy(w, lambda p: p @ x)


def clipped(ratio: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The ratio between 1 - epsilon and 1 + epsilon, the nearer bound outside, as section 1 prints it."""
    low, high = torch.full_like(ratio, 1 - epsilon), torch.full_like(ratio, 1 + epsilon)
    return torch.where(ratio < 1 - epsilon, low, torch.where(ratio > 1 + epsilon, high, ratio))


def group_rewards(
    new: torch.Tensor,
    old: torch.Tensor,
    rewards: RandomRewards,
    size: int,
    epsilon: float | None = None,
) -> torch.Tensor:
    """E[(1/G) sum_i min(w_i A_i, clip(w_i) A_i)] over all groups of answers of ``old``, a scalar.

    Args:
        new: pi_theta of every answer, [count]; may carry a gradient.
        old: pi_old, [count].
        rewards: Of the answers.
        size: G.
        epsilon: Of the clip; None leaves it out.
    """
    index = ordered(rewards.levels.numel(), size)
    chance = rewards.drawn(old)[index].prod(-1)
    advantage = standardized_or_zero(rewards.levels.flatten()[index])
    ratio = (new / old)[index // rewards.levels.shape[1]]
    weighted = ratio * advantage
    if epsilon is not None:
        weighted = torch.minimum(weighted, clipped(ratio, epsilon) * advantage)
    return chance @ weighted.mean(-1)


def group_penalty(new: torch.Tensor, old: torch.Tensor, ref: torch.Tensor, size: int) -> torch.Tensor:
    """E[(1/G) sum_i D_i] over all groups that ``old`` samples with a positive probability, a scalar."""
    index = ordered(len(old), size)
    chance = old[index].prod(-1)
    index, chance = index[chance > 0], chance[chance > 0]
    ratio = (ref / new)[index]
    return chance @ (ratio - ratio.log() - 1).mean(-1)


def printed_objective(w: Enumeration, size: int, beta: float, epsilon: float | None = None) -> Objective:
    """Eq (1) for one context with certain rewards, as a function of pi_theta, [count] to a scalar."""

    def objective(new: torch.Tensor) -> torch.Tensor:
        reward = group_rewards(new, w.p, certain(w.R), size, epsilon)
        return reward - beta * group_penalty(new, w.p, w.ref, size)

    return objective


def reward_update(w: Enumeration, size: int, rewards: torch.Tensor) -> torch.Tensor:
    """Gradient of the reward part of eq (1) without its clip, group by group, [rows, vocab]."""
    p, index = groups(w.problem, size)
    weighted = standardized_or_zero(rewards[index]) * w.rho[index]
    return torch.einsum("g,gi,girv->rv", p, weighted, w.s[index]) / size


def preference_gradient(w: Enumeration, size: int) -> torch.Tensor:
    """Exact gradient of the expected preference of an answer of the policy, [rows, vocab]."""
    return policy_mean(w, certain(w.R).preference(w.p, size))[1]


def in_logits(w: Enumeration, slopes: torch.Tensor) -> torch.Tensor:
    """A gradient in the probabilities of the answers as one in the logits, [rows, vocab]."""
    return mean(w.pi * slopes, w.s)


def kl_from_reference(w: Enumeration) -> Objective:
    """KL(pi_ref || pi) as a function of pi_theta."""
    return lambda new: forward_kl(new.log(), w.ref.log())
