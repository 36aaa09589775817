"""The preference of an answer over its group: its expected standardized reward, by enumeration.

The other answers of a group are drawn independently from one policy. Rewards are one number per answer,
[count], or random: several levels per answer, [count, levels], with the chances of each.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

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


def _flat(
    rewards: torch.Tensor, policy: torch.Tensor, chances: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Levels of all answers in one row, the probability of each, and the chances, [count, levels]."""
    levels = rewards if rewards.dim() == 2 else rewards[:, None]
    chances = torch.ones_like(levels) / levels.shape[1] if chances is None else chances
    return levels.flatten(), (policy[:, None] * chances).flatten(), chances


def expected_preference(
    rewards: torch.Tensor, policy: torch.Tensor, size: int, chances: torch.Tensor | None = None
) -> torch.Tensor:
    """P_G(o | policy) of every answer o: E[A_1 | o_1 = o], the other G - 1 drawn from ``policy``, [count].

    Exact, and differentiable in ``policy``.

    Args:
        rewards: [count], or levels of random rewards, [count, levels].
        policy: Probabilities of the answers that fill the group, [count].
        size: G, at least 2.
        chances: Of the levels of each answer, [count, levels]; alike where not given.
    """
    levels, p, chances = _flat(rewards, policy, chances)
    counts, orders = ways_to_draw(len(levels), size - 1)
    weight = orders * (p.clamp(min=0.0) ** counts).prod(-1)
    own = levels[:, None]
    mean = (own + counts @ levels) / size  # [levels of all, ways]
    square = ((levels - mean[..., None]).square() * counts).sum(-1) + (own - mean).square()
    spread = (square / size).sqrt()
    advantage = ((own - mean) / spread).where(spread > 1e-12, 0.0)
    return ((advantage @ weight).reshape(chances.shape) * chances).sum(-1)


def expected_reward(rewards: torch.Tensor, chances: torch.Tensor | None = None) -> torch.Tensor:
    """r(o): the mean of the reward of every answer, [count]."""
    levels, _, chances = _flat(rewards, torch.ones(len(rewards), dtype=rewards.dtype), chances)
    return (levels.reshape(chances.shape) * chances).sum(-1)


def reward_deviation(
    rewards: torch.Tensor, policy: torch.Tensor, chances: torch.Tensor | None = None
) -> torch.Tensor:
    """sigma(policy): the standard deviation of the reward of an answer drawn from ``policy``, a scalar."""
    levels, p, _ = _flat(rewards, policy, chances)
    return (p @ (levels - p @ levels).square()).sqrt()


def large_group_preference(
    rewards: torch.Tensor, policy: torch.Tensor, chances: torch.Tensor | None = None
) -> torch.Tensor:
    """The limit of `expected_preference` for large groups: (r(o) - E r) / sigma(policy), [count]."""
    expected = expected_reward(rewards, chances)
    return (expected - policy @ expected) / reward_deviation(rewards, policy, chances)


def win_rates(rewards: torch.Tensor, chances: torch.Tensor | None = None) -> torch.Tensor:
    """P(o > o'): the chance that the reward of o is larger than that of an independent o', [count, count]."""
    levels, _, chances = _flat(rewards, torch.ones(len(rewards), dtype=rewards.dtype), chances)
    of = levels.reshape(chances.shape)
    larger = (of[:, None, :, None] > of[None, :, None, :]).double()
    return torch.einsum("oplm,ol,pm->op", larger, chances, chances)
