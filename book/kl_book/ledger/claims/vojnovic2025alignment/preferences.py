"""Section 2.1: what groups prefer, in pairs and in the limit (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, numbers, observed, printed, same
from kl_book.ledger.claims.ground import group_objective as grpo
from kl_book.ledger.claims.ground.errors import apart, relative
from kl_book.ledger.claims.ground.group_objective import RandomRewards, certain, ways_to_draw
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import bandits, few_sampled_elsewhere, sampled_elsewhere, worlds

LargeGroups = tuple[Enumeration, RandomRewards, tuple[int, ...]]
Rewarded = tuple[Enumeration, RandomRewards]


def _random_rewards(w: Enumeration) -> tuple[RandomRewards, ...]:
    """Certain rewards, right or wrong, and two grades."""
    right = torch.sigmoid(w.R)
    chances = torch.stack([1 - right, right], dim=1)
    right_or_wrong = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(len(w.R), 2)
    grades = torch.stack([w.R - 1, w.R + 0.5], dim=1)
    return certain(w.R), RandomRewards(right_or_wrong, chances), RandomRewards(grades, chances.flip(1))


def _enumerable(size: int) -> Iterator[Rewarded]:
    """Worlds that another policy samples, with rewards whose groups are quickly enumerated."""
    for w in each(few_sampled_elsewhere, *bandits()[:4])():
        for rewards in _random_rewards(w):
            if rewards.levels.numel() ** size <= 1300:
                yield w, rewards


@claim("VY-2.1-R", over=lambda: (2, 3, 4))
def the_reward_part_is_an_expected_preference(size: int) -> Iterator[Found]:
    """The mean over all groups of weighted advantages is the expected P_G of an answer of the policy."""
    for w, rewards in _enumerable(size):
        preference = rewards.preference(w.p, size)
        yield same(grpo.group_rewards(w.pi, w.p, rewards, size), grpo.policy_mean(w, preference)[0])
        yield same(w.p @ preference, 0.0)


@claim("VY-G2-sign", over=each(worlds))
def advantages_of_two_are_signs(w: Enumeration) -> Iterator[Found]:
    """A_1 = sign(r_1 - r_2) = -A_2 for every pair."""
    rewards = w.R[groups(w.problem, 2)[1]]
    sign = (rewards[:, 0] - rewards[:, 1]).sign()
    yield same(standardized_or_zero(rewards), torch.stack([sign, -sign], dim=1))


@claim("VY-G2-invariant", over=each(few_sampled_elsewhere))
def two_rewards_count_by_their_order(w: Enumeration) -> Iterator[Found]:
    """Another increasing scale of the rewards leaves every pair's advantages and the update as they are."""
    stretched, index = w.R.exp() + 5 * w.R**3, groups(w.problem, 2)[1]
    yield same(standardized_or_zero(w.R[index]), standardized_or_zero(stretched[index]))
    yield same(grpo.reward_update(w, 2, stretched), grpo.preference_gradient(w, 2))
    if len(w.R) > 2:  # in groups of three sizes do matter
        yield differs(grpo.reward_update(w, 3, w.R), grpo.reward_update(w, 3, stretched))


@claim("VY-G2-P2", over=lambda: _enumerable(2))
def groups_of_two_compare_pairs(w: Enumeration, rewards: RandomRewards) -> Iterator[Found]:
    """P_2 is P(o > o') - P(o' > o), and R_2 its mean over an answer of the policy and one of the sampler."""
    net = rewards.wins - rewards.wins.T
    for alone, column in zip(torch.eye(len(w.p), dtype=torch.float64), net.T, strict=True):
        yield same(rewards.preference(alone, 2), column)
    yield same(grpo.group_rewards(w.pi, w.p, rewards, 2), grpo.policy_mean(w, net @ w.p)[0])
    yield observed(w.p @ (1 - rewards.wins - rewards.wins.T) @ w.p)


NORMAL = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)


def _never_tied(w: Enumeration) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards with normal noise: P(o > o') in closed form, and E[sign(r - r')] by quadrature."""
    gap = w.R[:, None] - w.R
    x = torch.linspace(-12, 12, 481, dtype=torch.float64)
    sign = NORMAL.log_prob(x).exp() * (2 * NORMAL.cdf(x + gap[..., None]) - 1)
    return NORMAL.cdf(gap / math.sqrt(2)), torch.trapezoid(sign, x)


@claim("VY-G2-R2-antisym", over=each(sampled_elsewhere, bandits))
def without_ties_one_preference_is_enough(w: Enumeration) -> Iterator[Found]:
    """Where P(o > o') + P(o' > o) = 1, R_2 = 2 E[P(o > o')] - 1."""
    wins, sign = _never_tied(w)
    yield same(wins + wins.T, 1.0)
    # group by group: half of both weighted advantages, E[sign] being the first
    from_pairs = (w.p[:, None] * w.p * sign * (w.rho[:, None] - w.rho)).sum() / 2
    yield same(from_pairs, 2 * grpo.policy_mean(w, wins @ w.p)[0] - 1)


def _slopes_of_wins(w: Enumeration, wins: torch.Tensor) -> torch.Tensor:
    """Exact gradient of 2 E[P(o > o')], [rows, vocab]."""
    return 2 * grpo.policy_mean(w, wins @ w.p)[1]


def _share_of_wins(w: Enumeration) -> float:
    """How far that gradient, of certain rewards, is from that of R_2."""
    return relative(_slopes_of_wins(w, certain(w.R).wins), grpo.preference_gradient(w, 2))


@claim("VY-G2-nlhf", over=each(sampled_elsewhere, bandits))
def groups_of_two_and_the_preferences_of_nlhf(w: Enumeration) -> Iterator[Found]:
    """Without ties R_2 is 2 E[P] - 1; where rewards tie, its gradient is not a multiple of that of E[P]."""
    wins, sign = _never_tied(w)
    update = w.E(w.times_score(sign @ w.p))
    yield same(update, _slopes_of_wins(w, wins), "inside")
    if len(w.R) > 2:
        yield printed(_share_of_wins(w))
        yield observed(_share_of_wins(w))
    pair = two((0.3, 0.7), (0.5, 0.5)).replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64))
    yield numbers(times=1 + _share_of_wins(pair))


def _two_answers() -> Iterator[LargeGroups]:
    """Bandits of two arms that another policy samples, certain or random rewards, sizes of groups."""
    for place, sizes in ((0, (50, 100, 200)), (1, (8, 16, 32))):
        for w in each(*(p for p in sampled_elsewhere() if len(p.sequences) == 2))():
            yield w, _random_rewards(w)[place], sizes


def _halves(errors: list[float]) -> Iterator[Found]:
    """Each is well below the one before."""
    return (at_most(after, 0.6 * before) for before, after in pairwise(errors))


@claim("VY-Ginf-limits", over=_two_answers)
def mean_and_deviation_of_a_large_group(
    w: Enumeration, rewards: RandomRewards, sizes: tuple[int, ...]
) -> Iterator[Found]:
    """Their mean squared distances from E[r] and sigma halve as the group doubles."""
    flat, p = rewards.levels.flatten(), rewards.drawn(w.p)
    sampler = w.problem.sampled_from.softmax(-1)[0]
    center, sigma = float(sampler @ rewards.expected), float(rewards.deviation(sampler))
    off = []
    for size in sizes:
        counts, orders = ways_to_draw(len(flat), size)
        weight = orders * (p**counts).prod(-1)
        average = counts @ flat / size
        spread = (((flat - average[:, None]).square() * counts).sum(-1) / size).sqrt()
        yield same(size * (weight @ (average - center).square()), sigma**2)
        off.append(float(weight @ (spread - sigma).square()))
    yield from _halves(off)
    yield observed(off[-1] ** 0.5 / sigma)


@claim("VY-Ginf-R", over=_two_answers)
def the_reward_part_of_large_groups(
    w: Enumeration, rewards: RandomRewards, sizes: tuple[int, ...]
) -> Iterator[Found]:
    """R_G comes to (E r - E_old r)/sigma(old): the gap halves as the group doubles."""
    sampler = w.problem.sampled_from.softmax(-1)[0]
    gain = grpo.policy_mean(w, rewards.expected)[0] - float(sampler @ rewards.expected)
    limit = gain / float(rewards.deviation(sampler))
    yield same(w.pi @ rewards.preference(w.p, None), limit)
    off = [apart(w.pi @ rewards.preference(w.p, size), limit) for size in sorted({8, *sizes})]
    yield from _halves(off)
    yield at_most(off[-1] / abs(limit), 0.05)
    yield observed(off[0] / abs(limit))
