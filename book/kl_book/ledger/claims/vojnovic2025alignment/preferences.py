"""Section 2.1: what groups prefer, in pairs and in the limit (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, relative, violation, worst
from kl_book.ledger.claims.ground.group_objective import (
    group_rewards,
    old_policy,
    policy,
    policy_mean,
    preference_gradient,
    reward_update,
)
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.off_policy import average, rho, times_score
from kl_book.ledger.claims.ground.preferences import (
    expected_preference,
    expected_reward,
    large_group_preference,
    reward_deviation,
    ways_to_draw,
    win_rates,
)
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.worlds import (
    bandits,
    few_sampled_elsewhere,
    sampled_elsewhere,
    three_policies,
    trees,
)
from kl_companion.tabular import Problem

SIZES = (2, 3, 4)
Rewards = tuple[torch.Tensor, torch.Tensor]


def _random_rewards(problem: Problem) -> Iterator[Rewards]:
    """Levels and chances, [count, levels]: certain rewards, right or wrong, and two grades."""
    r = problem.rewards
    yield r[:, None], torch.ones_like(r)[:, None]
    right = torch.sigmoid(r)
    chances = torch.stack([1 - right, right], dim=1)
    yield torch.tensor([0.0, 1.0], dtype=torch.float64).expand(len(r), 2), chances
    yield torch.stack([r - 1, r + 0.5], dim=1), chances.flip(1)


def _enumerable(size: int) -> Iterator[tuple[Problem, torch.Tensor, torch.Tensor]]:
    """Worlds that another policy samples, with rewards whose groups are quickly enumerated."""
    for problem in (*few_sampled_elsewhere(), *bandits()[:4]):
        for levels, chances in _random_rewards(problem):
            if levels.numel() ** size <= 1300:
                yield problem, levels, chances


@claim("VY-2.1-R")
def the_reward_part_is_an_expected_preference() -> Iterator[Found]:
    """The mean over all groups of weighted advantages is the expected P_G of an answer of the policy."""
    errors = []
    for size in SIZES:
        for problem, levels, chances in _enumerable(size):
            whole = group_rewards(policy(problem), old_policy(problem), levels, chances, size)
            preference = expected_preference(levels, old_policy(problem), size, chances)
            errors.append(apart(whole, policy_mean(problem, preference)[0]))
            errors.append(apart(old_policy(problem) @ preference, 0.0))
    yield from each_form(worst(errors))


@claim("VY-G2-sign")
def advantages_of_two_are_signs() -> Iterator[Found]:
    """A_1 = sign(r_1 - r_2) = -A_2 for every pair."""
    errors = []
    for problem in (*bandits(), *trees()):
        rewards = problem.rewards[groups(problem, 2)[1]]
        sign = (rewards[:, 0] - rewards[:, 1]).sign()
        errors.append(apart(standardized_or_zero(rewards), torch.stack([sign, -sign], dim=1)))
    yield from each_form(worst(errors))


@claim("VY-G2-invariant")
def two_rewards_count_by_their_order() -> Iterator[Found]:
    """Another increasing scale of the rewards leaves every pair's advantages and the update as they are."""
    errors = []
    for problem in few_sampled_elsewhere():
        stretched = problem.rewards.exp() + 5 * problem.rewards**3
        index = groups(problem, 2)[1]
        errors.append(apart(*(standardized_or_zero(r[index]) for r in (problem.rewards, stretched))))
        errors.append(apart(reward_update(problem, 2, stretched), preference_gradient(problem, 2)))
        if len(problem.rewards) > 2:
            a, b = (reward_update(problem, 3, r) for r in (problem.rewards, stretched))
            errors.append(differs(a, b))  # in groups of three sizes do matter
    yield from each_form(worst(errors))


@claim("VY-G2-P2")
def groups_of_two_compare_pairs() -> Iterator[Found]:
    """P_2 is P(o > o') - P(o' > o), and R_2 its mean over an answer of the policy and one of the sampler."""
    errors, ties = [], []
    for problem, levels, chances in _enumerable(2):
        wins, old = win_rates(levels, chances), old_policy(problem)
        net = wins - wins.T
        for other, column in enumerate(net.T):
            alone = torch.eye(len(old), dtype=torch.float64)[other]
            errors.append(apart(expected_preference(levels, alone, 2, chances), column))
        whole = group_rewards(policy(problem), old, levels, chances, 2)
        errors.append(apart(whole, policy_mean(problem, net @ old)[0]))
        ties.append(float(old @ (1 - wins - wins.T) @ old))
    yield from each_form(worst(errors), min_ties=min(ties), max_ties=max(ties))


def _bell(x: torch.Tensor) -> torch.Tensor:
    return (-x.square() / 2).exp() / math.sqrt(2 * math.pi)


def _below(x: torch.Tensor) -> torch.Tensor:
    """The chance that a standard normal number is below x."""
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _never_tied(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards with normal noise: P(o > o') in closed form, and E[sign(r - r')] by quadrature."""
    gap = problem.rewards[:, None] - problem.rewards
    x = torch.linspace(-12, 12, 481, dtype=torch.float64)
    sign = _bell(x) * (_below(x + gap[..., None]) - _below(-x - gap[..., None]))
    return _below(gap / math.sqrt(2)), torch.trapezoid(sign, x)


def _from_pairs(problem: Problem, sign: torch.Tensor) -> torch.Tensor:
    """R_2 group by group: half of both weighted advantages, E[sign] being the first, a scalar."""
    old, weight = old_policy(problem), rho(problem)
    return (old[:, None] * old * sign * (weight[:, None] - weight)).sum() / 2


@claim("VY-G2-R2-antisym")
def without_ties_one_preference_is_enough() -> Iterator[Found]:
    """Where P(o > o') + P(o' > o) = 1, R_2 = 2 E[P(o > o')] - 1."""
    errors = []
    for problem in (*sampled_elsewhere(), *bandits()):
        wins, sign = _never_tied(problem)
        errors.append(apart(wins + wins.T, 1.0))
        expected = policy_mean(problem, wins @ old_policy(problem))[0]
        errors.append(apart(_from_pairs(problem, sign), 2 * expected - 1))
    yield from each_form(worst(errors))


def _slopes_of_wins(problem: Problem, wins: torch.Tensor) -> torch.Tensor:
    """Exact gradient of 2 E[P(o > o')], [rows, vocab]."""
    return 2 * policy_mean(problem, wins @ old_policy(problem))[1]


@claim("VY-G2-nlhf")
def groups_of_two_and_the_preferences_of_nlhf() -> Iterator[Found]:
    """Without ties R_2 is 2 E[P] - 1; where rewards tie, its gradient is not a multiple of that of E[P]."""
    printed, inside = [], []
    for problem in (*sampled_elsewhere(), *bandits()):
        wins, sign = _never_tied(problem)
        update = average(times_score(sign @ old_policy(problem), problem), problem)
        inside.append(apart(update, _slopes_of_wins(problem, wins)))
        certain = win_rates(problem.rewards)
        if len(problem.rewards) > 2:
            printed.append(relative(_slopes_of_wins(problem, certain), preference_gradient(problem, 2)))
    pair = three_policies((0.3, 0.7), (0.5, 0.5), (0.3, 0.7))
    pair = pair._replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64))
    share = relative(_slopes_of_wins(pair, win_rates(pair.rewards)), preference_gradient(pair, 2))
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        number_of_printed=len(printed),
        min_printed=min(printed),
        max_printed=max(printed),
        number=1 + share,
    )


def _two_answers(noise: bool) -> Iterator[tuple[Problem, torch.Tensor, torch.Tensor]]:
    """Bandits of two arms that another policy samples, with certain or random rewards."""
    for problem in [p for p in sampled_elsewhere() if len(p.sequences) == 2]:
        yield problem, *list(_random_rewards(problem))[1 if noise else 0]


@claim("VY-Ginf-limits")
def mean_and_deviation_of_a_large_group() -> Iterator[Found]:
    """Their mean squared distances from E[r] and sigma halve as the group doubles."""
    errors, last = [], []
    for noise in (False, True):
        for problem, levels, chances in _two_answers(noise):
            flat, p = levels.flatten(), (terms(problem).p[:, None] * chances).flatten()
            sampler = problem.sampled_from.softmax(-1)[0]
            center = float(sampler @ expected_reward(levels, chances))
            sigma = float(reward_deviation(levels, sampler, chances))
            off = []
            for size in (8, 16, 32) if noise else (50, 100, 200):
                counts, orders = ways_to_draw(len(flat), size)
                weight = orders * (p**counts).prod(-1)
                average = counts @ flat / size
                spread = (((flat - average[:, None]).square() * counts).sum(-1) / size).sqrt()
                errors.append(apart(size * (weight @ (average - center).square()), sigma**2))
                off.append(float(weight @ (spread - sigma).square()))
            errors += [less(after, 0.6 * before, by=0.0) for before, after in pairwise(off)]
            last.append(off[-1] ** 0.5 / sigma)
    yield from each_form(worst(errors), max_last=max(last))


@claim("VY-Ginf-R")
def the_reward_part_of_large_groups() -> Iterator[Found]:
    """R_G comes to (E r - E_old r)/sigma(old): the gap halves as the group doubles."""
    errors, first = [], []
    for noise in (False, True):
        for problem, levels, chances in _two_answers(noise):
            sampler = problem.sampled_from.softmax(-1)[0]
            expected = expected_reward(levels, chances)
            gain = policy_mean(problem, expected)[0] - float(sampler @ expected)
            limit = gain / float(reward_deviation(levels, sampler, chances))
            p, old, off = policy(problem), old_policy(problem), []
            errors.append(apart(p @ large_group_preference(levels, old, chances), limit))
            for size in (8, 16, 32) if noise else (8, 50, 100, 200):
                whole = p @ expected_preference(levels, old, size, chances)
                off.append(apart(whole, limit))
            errors += [less(after, 0.6 * before, by=0.0) for before, after in pairwise(off)]
            errors.append(violation(off[-1] / abs(limit) - 0.05))
            first.append(off[0] / abs(limit))
    yield from each_form(worst(errors), min_first=min(first), max_first=max(first))
