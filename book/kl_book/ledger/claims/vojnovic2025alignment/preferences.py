"""Sections 1, 1.1 and 2.1: advantages, RLHF and NLHF, and what groups prefer (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import (
    Found,
    at_most,
    differs,
    less,
    numbers,
    observed,
    printed,
    same,
)
from kl_book.ledger.claims.ground import group_objective as grpo
from kl_book.ledger.claims.ground.best_policies import not_best, with_kl
from kl_book.ledger.claims.ground.errors import apart, relative
from kl_book.ledger.claims.ground.group_objective import RandomRewards, certain, ways_to_draw
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.sums import exact, reverse_kl
from kl_book.ledger.claims.ground.updates import regularized
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import (
    bandits,
    few_sampled_elsewhere,
    sampled_elsewhere,
    trees,
    worlds,
)

BETAS = (0.3, 1.0, 4.0)


@claim("VY-eq2", over=each(lambda: (*bandits()[:6], trees()[0])))
def the_advantage_is_a_standardized_reward(w: Enumeration) -> Iterator[Found]:
    """Over its group it has mean 0 and mean square 1, and it is 0 where all rewards agree."""
    for size in (2, 3, 4):
        rewards = w.R[groups(w.problem, size)[1]]
        a, agree = standardized_or_zero(rewards), (rewards == rewards[:, :1]).all(-1)
        yield same(a.mean(-1), 0.0)
        yield same(a.square().mean(-1), 1.0 - agree.double())
        yield at_most(0.0, (rewards[:, 0] - rewards[:, 1]) * (a[:, 0] - a[:, 1]))


@claim("VY-eq2-pairwise", over=lambda: range(2, 6))
def the_advantage_from_pairs(size: int) -> Iterator[Found]:
    """Numerator and squared denominator of both forms are the same polynomials, for G = 2 to 5."""
    r = sympy.symbols(f"r1:{size + 1}")
    average = sum(r) / sympy.Integer(size)
    variance = sum((x - average) ** 2 for x in r) / size
    pairs = sum((x - y) ** 2 for x in r for y in r) / sympy.Integer(2 * size**2)
    numerators = [x - average - sum(x - y for y in r) / sympy.Integer(size) for x in r]
    yield from (printed(sympy.expand(d) != 0) for d in (variance - pairs, *numerators))


@claim("VY-eq2-invariance", over=each(few_sampled_elsewhere))
def shift_and_scale_do_not_matter(w: Enumeration) -> Iterator[Found]:
    """Advantages of 3 r - 7 are those of r, and so is the update; those of -r have the other sign."""
    changed = 3 * w.R - 7
    for size in (2, 3):
        index = groups(w.problem, size)[1]
        yield same(standardized_or_zero(w.R[index]), standardized_or_zero(changed[index]))
        yield same(grpo.reward_update(w, size, changed), grpo.preference_gradient(w, size))


# section 1.1: RLHF and NLHF


def _is_best(w: Enumeration, beta: float, best: torch.Tensor) -> Iterator[Found]:
    """No policy has a larger E[r] - beta KL, and the world's own loses beta KL to it."""
    objective = with_kl("reverse", w.problem, beta)
    yield printed(not_best(best, objective))
    lost = objective(best) - regularized(w.problem, beta)[0]
    yield same(lost, beta * reverse_kl(w.pi.log(), best.log()))


@claim("VY-eq3", "VY-eq4-pooling", over=lambda: product(each(worlds)(), BETAS))
def the_best_policy_is_a_logarithmic_pool(w: Enumeration, beta: float) -> Iterator[Found]:
    """No policy has a larger E[r] - beta KL than ref exp(r/beta) or ref softmax(r)^(1/beta), normalized."""
    tilted, pool = w.ref * (w.R / beta).exp(), w.ref * w.R.softmax(-1) ** (1 / beta)
    yield same(pool / pool.sum(), tilted / tilted.sum())
    for best in (tilted, pool):
        yield from _is_best(w, beta, best / best.sum())


def _wins(w: Enumeration) -> torch.Tensor:
    """P(o > o') with a part that follows the rewards and one that goes in circles, [count, count]."""
    place = torch.arange(len(w.R), dtype=torch.float64)
    circle = torch.sin(2 * math.pi * (place[:, None] - place) / len(place))
    return torch.sigmoid(w.R[:, None] - w.R + 2 * circle)


def _mirror_descent(w: Enumeration, beta: float, start: torch.Tensor, steps: int = 150) -> torch.Tensor:
    """Mirror ascent on the payoff against itself, in steps of 0.2/beta, [count]."""
    wins, log_q, log_p = _wins(w), w.ref.log(), start.log()
    for _ in range(steps):
        log_p = (0.8 * log_p + 0.2 * (log_q + wins @ log_p.exp() / beta)).log_softmax(-1)
    return log_p.exp()


def _nash_md(w: Enumeration, beta: float, steps: int) -> torch.Tensor:
    """Nash-MD of Munos et al., with falling steps: from a mixture with the reference and against it."""
    wins, log_q = _wins(w), w.ref.log()
    log_p = log_q
    for step in range(steps):
        share = 2 / (step + 2)
        mixture = ((1 - share) * log_p + share * log_q).log_softmax(-1)
        log_p = (mixture + share / beta * wins @ mixture.exp()).log_softmax(-1)
    return log_p.exp()


def _payoff(w: Enumeration, beta: float, p: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Eq (5) for one context."""
    costs = (reverse_kl(x.log(), w.ref.log()) for x in (p, other))
    return p @ _wins(w) @ other - beta * next(costs) + beta * next(costs)


@claim("VY-eq5", over=lambda: product(each(bandits)(), BETAS[:2]))
def the_equilibrium_is_a_tilted_reference(w: Enumeration, beta: float) -> Iterator[Found]:
    """A policy that solves the printed equation is a best reply to itself, and both payoffs add up to 1."""
    p = _mirror_descent(w, beta, w.pi)
    tilted = w.ref * (_wins(w) @ p / beta).exp()
    yield same(p, tilted / tilted.sum())
    yield from _is_best(w.replace(rewards=_wins(w) @ p), beta, p)
    yield same(_payoff(w, beta, w.pi, w.ref) + _payoff(w, beta, w.ref, w.pi), 1.0)


@claim("VY-nlhf-unique", over=lambda: product(each(*bandits()[3:])(), BETAS[:2]))
def one_equilibrium_that_mirror_descent_finds(w: Enumeration, beta: float) -> Iterator[Found]:
    """Between two policies the payoff's slope falls by beta times both KLs, and all starts end alike."""
    slopes = [_wins(w) @ x - beta * (x / w.ref).log() for x in (w.pi, w.ref)]
    back = exact(lambda a, b: reverse_kl(b, a), w.problem)[0]
    yield same((w.pi - w.ref) @ (slopes[0] - slopes[1]), -beta * (w.kl + back))
    one, other = (_mirror_descent(w, beta, start) for start in (w.pi, w.pi.flip(0)))
    yield same(one, other)
    yield from _is_best(w.replace(rewards=_wins(w) @ one), beta, one)
    at_50, at_200 = (float(reverse_kl(one.log(), _nash_md(w, beta, n).log())) for n in (50, 200))
    yield at_most(at_200, 8 / beta**2 / 201)
    yield less(at_200, at_50 / 4, by=0.0)


# section 2.1: what groups prefer, in pairs and in the limit

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
