"""Section 2.1: what groups prefer, in pairs and in the limit (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, numbers, printed, same
from kl_book.ledger.claims.ground import group_objective as grpo
from kl_book.ledger.claims.ground.errors import apart, relative
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.preferences import (
    expected_preference,
    expected_reward,
    large_group_preference,
    reward_deviation,
    ways_to_draw,
    win_rates,
)
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import bandits, few_sampled_elsewhere, sampled_elsewhere, worlds

Rewarded = tuple[Enumeration, torch.Tensor, torch.Tensor]


def _random_rewards(w: Enumeration) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Levels and chances, [count, levels]: certain rewards, right or wrong, and two grades."""
    yield w.R[:, None], torch.ones_like(w.R)[:, None]
    right = torch.sigmoid(w.R)
    chances = torch.stack([1 - right, right], dim=1)
    yield torch.tensor([0.0, 1.0], dtype=torch.float64).expand(len(w.R), 2), chances
    yield torch.stack([w.R - 1, w.R + 0.5], dim=1), chances.flip(1)


def _enumerable(size: int) -> Iterator[Rewarded]:
    """Worlds that another policy samples, with rewards whose groups are quickly enumerated."""
    for w in each(few_sampled_elsewhere, *bandits()[:4])():
        for levels, chances in _random_rewards(w):
            if levels.numel() ** size <= 1300:
                yield w, levels, chances


@claim("VY-2.1-R", over=lambda: (2, 3, 4))
def the_reward_part_is_an_expected_preference(size: int) -> Iterator[Found]:
    """The mean over all groups of weighted advantages is the expected P_G of an answer of the policy."""
    for w, levels, chances in _enumerable(size):
        preference = expected_preference(levels, w.p, size, chances)
        yield same(grpo.group_rewards(w.pi, w.p, levels, chances, size), grpo.policy_mean(w, preference)[0])
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


@claim("VY-G2-P2")
def groups_of_two_compare_pairs() -> Iterator[Found]:
    """P_2 is P(o > o') - P(o' > o), and R_2 its mean over an answer of the policy and one of the sampler."""
    ties = []
    for w, levels, chances in _enumerable(2):
        wins = win_rates(levels, chances)
        net = wins - wins.T
        for alone, column in zip(torch.eye(len(w.p), dtype=torch.float64), net.T, strict=True):
            yield same(expected_preference(levels, alone, 2, chances), column)
        yield same(grpo.group_rewards(w.pi, w.p, levels, chances, 2), grpo.policy_mean(w, net @ w.p)[0])
        ties.append(float(w.p @ (1 - wins - wins.T) @ w.p))
    yield numbers(fewest=min(ties), most=max(ties))


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
    return relative(_slopes_of_wins(w, win_rates(w.R)), grpo.preference_gradient(w, 2))


@claim("VY-G2-nlhf")
def groups_of_two_and_the_preferences_of_nlhf() -> Iterator[Found]:
    """Without ties R_2 is 2 E[P] - 1; where rewards tie, its gradient is not a multiple of that of E[P]."""
    shares = []
    for w in each(sampled_elsewhere, bandits)():
        wins, sign = _never_tied(w)
        update = w.E(w.times_score(sign @ w.p))
        yield same(update, _slopes_of_wins(w, wins), "inside")
        if len(w.R) > 2:
            shares.append(_share_of_wins(w))
    yield printed(max(shares))
    pair = two((0.3, 0.7), (0.5, 0.5)).replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64))
    yield numbers(worlds=len(shares), least=min(shares), most=max(shares), times=1 + _share_of_wins(pair))


def _two_answers(noise: bool) -> Iterator[Rewarded]:
    """Bandits of two arms that another policy samples, with certain or random rewards."""
    for w in each(*(p for p in sampled_elsewhere() if len(p.sequences) == 2))():
        yield w, *list(_random_rewards(w))[1 if noise else 0]


def _halves(errors: list[float]) -> Iterator[Found]:
    """Each is well below the one before."""
    return (at_most(after, 0.6 * before) for before, after in pairwise(errors))


@claim("VY-Ginf-limits")
def mean_and_deviation_of_a_large_group() -> Iterator[Found]:
    """Their mean squared distances from E[r] and sigma halve as the group doubles."""
    last = []
    for noise, sizes in ((False, (50, 100, 200)), (True, (8, 16, 32))):
        for w, levels, chances in _two_answers(noise):
            flat, p = levels.flatten(), (w.p[:, None] * chances).flatten()
            sampler = w.problem.sampled_from.softmax(-1)[0]
            center = float(sampler @ expected_reward(levels, chances))
            sigma = float(reward_deviation(levels, sampler, chances))
            off = []
            for size in sizes:
                counts, orders = ways_to_draw(len(flat), size)
                weight = orders * (p**counts).prod(-1)
                average = counts @ flat / size
                spread = (((flat - average[:, None]).square() * counts).sum(-1) / size).sqrt()
                yield same(size * (weight @ (average - center).square()), sigma**2)
                off.append(float(weight @ (spread - sigma).square()))
            yield from _halves(off)
            last.append(off[-1] ** 0.5 / sigma)
    yield numbers(last=max(last))


@claim("VY-Ginf-R")
def the_reward_part_of_large_groups() -> Iterator[Found]:
    """R_G comes to (E r - E_old r)/sigma(old): the gap halves as the group doubles."""
    first = []
    for noise, sizes in ((False, (8, 50, 100, 200)), (True, (8, 16, 32))):
        for w, levels, chances in _two_answers(noise):
            sampler = w.problem.sampled_from.softmax(-1)[0]
            expected = expected_reward(levels, chances)
            gain = grpo.policy_mean(w, expected)[0] - float(sampler @ expected)
            limit = gain / float(reward_deviation(levels, sampler, chances))
            yield same(w.pi @ large_group_preference(levels, w.p, chances), limit)
            off = [apart(w.pi @ expected_preference(levels, w.p, size, chances), limit) for size in sizes]
            yield from _halves(off)
            yield at_most(off[-1] / abs(limit), 0.05)
            first.append(off[0] / abs(limit))
    yield numbers(least=min(first), most=max(first))
