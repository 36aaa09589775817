"""The preference of an answer over its group: its expected standardized reward, by enumeration.

The other answers of a group are drawn independently from one policy.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import NamedTuple

import torch


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
