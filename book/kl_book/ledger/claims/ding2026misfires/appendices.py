"""Figure 2 and appendices C, G and H: scales of coefficients and weak rewards (ding2026misfires)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import (
    calibrated,
    contributions,
    gates,
    k3_slopes,
    mean_drift,
    stale,
    surrogate_slopes,
    token_ratios,
)
from kl_book.ledger.claims.ground.errors import apart, differs, excess, less, relative, violation, worst
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.sums import exact, field, kl_gradient, log_ratio, mean, reverse_kl, terms
from kl_book.ledger.claims.ground.updates import binary, population_mean, regularized
from kl_book.ledger.claims.ground.worlds import bandits, trees, two_policies
from kl_companion.tabular import Problem

SIZE = 16  # answers per prompt in the source
EPSILON = 1e-6
BETA, TAU = 0.04, 1e-3


def _example() -> Problem:
    """Appendix G: 16 answers of one token, policy 0.4 and 0.6/15, reference 0.2 and 0.8/15."""
    rest = SIZE - 1
    return two_policies([0.4, *[0.6 / rest] * rest], [0.2, *[0.8 / rest] * rest])


def _rewards(tau: float) -> torch.Tensor:
    """One pair (tau, -tau), then seven pairs (1, -1), [1, 16]; the weak ones stand first."""
    return torch.tensor([[tau, -tau, *[1.0, -1.0] * 7]], dtype=torch.float64)


def _advantage(tau: float, epsilon: float = EPSILON) -> torch.Tensor:
    """Centered, over the sample standard deviation and a small number, [1, 16]."""
    x = _rewards(tau)
    return centered(x, "mean") / (x.std(-1, keepdim=True) + epsilon)


def _steps(tau: float, beta: float) -> torch.Tensor:
    """Coefficients of the scores in a descent step on reward and k3 loss, every answer once, [16]."""
    problem, index = _example(), torch.arange(SIZE)[None]
    slopes = surrogate_slopes(problem, index, _advantage(tau)) + beta * k3_slopes(problem)[index]
    return -slopes[0, :, 0]


@claim("ZCPO-fig2-zero")
def coefficients_that_sum_to_zero_do_not_make_the_update_zero() -> Iterator[Found]:
    """The scores that they weigh differ."""
    errors = []
    for problem in (binary(p) for p in trees()):
        index = groups(problem, 3)[1]
        joint = calibrated(problem.rewards[index], mean_drift(problem)[index], 4.0)
        active = joint.abs().sum(-1) > 1e-9
        slopes = surrogate_slopes(problem, index[active], joint[active])
        errors.append(apart(joint.sum(-1), 0.0))
        total = contributions(problem, index[active], slopes).sum((1, 2)).flatten(1).norm(dim=-1)
        errors.append(violation(1e-6 - float(total.max())))
    yield from each_form(worst(errors))


@claim("ZCPO-fig2-onlynoise")
def what_the_exact_kl_takes_away() -> Iterator[Found]:
    """Of the value, the noise of the token alone; of the update of a bandit, all that the KL adds."""
    inside = []
    for problem in trees():
        along, ratio = token_kls(problem, problem.logits), terms(problem).log_ratio
        for row in range(len(problem.logits)):
            here = (problem.rows == row) & (problem.completion_mask > 0)
            reach = terms(problem).p[:, None].expand_as(ratio)[here]
            inside.append(apart((reach * ratio[here]).sum() / reach.sum(), along[here][0]))
        inside.append(differs(mean_drift(problem), mean_drift(problem)[0]))  # prefixes still vary
    lost = []
    for problem in bandits():
        by_sample, by_exact = (field(x, problem) for x in (log_ratio(problem), mean_drift(problem)))
        inside.append(apart(by_sample, kl_gradient(problem)))
        lost.append(relative(by_exact, by_sample))
    yield from each_form(
        worst([*inside, *lost]), inside=worst(inside), number_of_lost=len(lost), max_lost=max(lost)
    )


@claim("ZCPO-C-open")
def at_the_sampler_every_gate_is_open() -> Iterator[Found]:
    """All ratios are 1, and the slope of the surrogate is minus the coefficient."""
    errors = []
    for problem in (p._replace(behavior_logits=None) for p in stale()):
        index = groups(problem, 2)[1]
        rewards = centered(problem.rewards[index], "mean")
        ratio = token_ratios(problem)[index]
        errors += [apart(ratio, 1.0), apart(gates(ratio, rewards[..., None]), 1.0)]
        slopes = surrogate_slopes(problem, index, rewards)
        errors.append(apart(slopes, -rewards[..., None] * problem.completion_mask[index]))
    yield from each_form(worst(errors))


@claim("ZCPO-C-bounded")
def both_normalizations_are_bounded() -> Iterator[Found]:
    """|A|/std is at most (G - 1)/sqrt G with the sample deviation, and one right answer of G reaches it."""
    within, corrected, largest = [], [], []
    for size in (2, 4, SIZE):
        lone = torch.zeros(1, size, dtype=torch.float64)
        lone[0, 0] = 1.0
        several = torch.cat([lone, lone * 1e6, *[_spread(size, k) for k in range(1, 6)]])
        ratio = centered(several, "mean") / several.std(-1, keepdim=True)
        bound = (size - 1) / math.sqrt(size)
        within += [bool(x <= bound + 1e-12) for x in ratio.abs().amax(-1)]
        corrected.append(apart(ratio[0, 0], bound))
        # the gap to the bound is a square: this is the proof
        others = centered(several[:, 1:], "mean").square().sum(-1)
        gap = several.var(-1) * bound**2 - centered(several, "mean")[:, 0] ** 2
        corrected.append(apart(gap / several.var(-1), (size - 1) / size * others / several.var(-1)))
        drift = torch.zeros_like(several)
        corrected.append(violation(float(calibrated(several, drift, 0.0).abs().max()) - 1.0 - 1e-12))
        largest.append(bound)
    yield from each_form(share_of_cases(within), worst(corrected), SIZE=SIZE, largest_1=largest[-1])


def _spread(size: int, power: int) -> torch.Tensor:
    """Rewards i^power of a group."""
    return (torch.arange(size, dtype=torch.float64) ** power)[None]


@claim("ZCPO-G-std")
def the_weak_advantage() -> Iterator[Found]:
    """sigma = sqrt((14 + 2 tau^2) / 15); the advantage of the weak pair goes to 0 with tau."""
    errors = []
    for tau in (0.5, TAU, 1e-9):
        errors.append(apart(_rewards(tau).std(-1), math.sqrt((14 + 2 * tau**2) / 15)))
        errors.append(violation(float(_advantage(tau)[0, 0]) - 1.1 * tau))
        problem, index = _example(), torch.arange(SIZE)[None]
        errors.append(apart(surrogate_slopes(problem, index, _advantage(tau))[..., 0], -_advantage(tau)))
    yield from each_form(worst(errors))


@claim("ZCPO-eq3")
def coefficients_of_the_weak_pair() -> Iterator[Found]:
    """A - beta(1 - exp(-Delta)) and -A + beta/3, with the printed numbers."""
    x = log_ratio(_example())
    found, weak = _steps(TAU, BETA), float(_advantage(TAU)[0, 0])
    printed = _advantage(TAU)[0] - BETA * (1 - (-x).exp())
    errors = [apart(found, printed), excess(weak, "0.0010351"), excess(float(found[0]), "-0.0189649")]
    errors += [excess(float(found[1]), "0.0122982"), apart(found[1], -weak + BETA / 3)]
    errors += [apart(x[0].exp(), 2.0), apart(x[1].exp(), 0.75)]
    yield from each_form(worst(errors))


@claim("ZCPO-G-sign")
def a_weak_reward_is_outweighed_by_every_coefficient() -> Iterator[Found]:
    """For every beta tried, a small enough tau reverses both answers of the pair."""
    errors = []
    for beta in (10.0, BETA, 1e-4):
        for tau in (min(beta, 1.0) / 10, 1e-12):
            found = _steps(tau, beta)
            errors += [less(float(found[0]), 0.0, by=0.0), less(0.0, float(found[1]), by=0.0)]
        errors += [apart(found[0], -beta / 2), apart(found[1], beta / 3)]
    yield from each_form(worst(errors))


def _strengths(tau: float) -> torch.Tensor:
    """lambda = |1 - exp(-Delta)| / (|A| r) at conflicting positions, [conflicting]."""
    problem, advantage = _example(), _advantage(tau)[0]
    conflict = advantage * log_ratio(problem) > 0
    return (k3_slopes(problem)[:, 0].abs() / advantage.abs())[conflict]


@claim("ZCPO-eq4")
def the_largest_coefficient_without_reversal() -> Iterator[Found]:
    """beta up to 1 / max lambda reverses no conflicting answer, a larger one does; ratios are beta lambda."""
    errors, problem, advantage = [], _example(), _advantage(TAU)[0]
    conflict = advantage * log_ratio(problem) > 0
    bound = 1 / float(_strengths(TAU).max())
    for beta, reversed_somewhere in ((bound * 0.999, False), (bound * 1.001, True)):
        against = (_steps(TAU, beta) * advantage < 0)[conflict]
        errors.append(float(bool(against.any()) != reversed_somewhere))
        kl = (_steps(TAU, 0.0) - _steps(TAU, beta)).abs()[conflict]
        errors.append(apart(kl / advantage.abs()[conflict], beta * _strengths(TAU)))
    by_hand = (1 - (-log_ratio(problem)).exp()).abs()[conflict] / advantage.abs()[conflict]
    errors.append(apart(_strengths(TAU), by_hand))
    yield from each_form(worst(errors))


@claim("ZCPO-G1-decomposition")
def shared_drift_and_scales_drop_out() -> Iterator[Found]:
    """A common drift, and the unit of what is left of the rewards, leave C; the largest reward part is 1."""
    errors = []
    for problem in (binary(p) for p in trees()):
        index = groups(problem, 3)[1]
        z, drift = problem.rewards[index], mean_drift(problem)[index]
        active = (z != z[:, :1]).any(-1)
        z, drift = z[active], drift[active]
        left = centered(z, "mean")
        printed = left / left.abs().amax(-1, keepdim=True) - 4.0 * centered(drift, "mean")
        errors.append(apart(calibrated(5.0 + 1e-3 * z, drift + 0.3, 4.0), printed))
        errors.append(apart(calibrated(z, drift, 0.0).abs().amax(-1), 1.0))
        gap = calibrated(z, drift, 4.0) - calibrated(z, drift, 0.0)
        errors.append(apart(gap.abs().amax(-1), 4.0 * centered(drift, "mean").abs().amax(-1)))
    yield from each_form(worst(errors))


@claim("ZCPO-G1-mixed")
def chance_of_a_group_with_both_rewards() -> Iterator[Found]:
    """1 - p^G - (1 - p)^G, and what one more answer adds."""
    errors = []
    for problem in (binary(p) for p in bandits()[:6]):
        p, chances = population_mean(problem, problem.rewards), []
        for size in (2, 3, 4):
            weight, index = groups(problem, size)
            rewards = problem.rewards[index]
            chances.append(float((weight * (rewards != rewards[:, :1]).any(-1)).sum()))
            errors.append(apart(chances[-1], 1 - p**size - (1 - p) ** size))
        for size, (before, after) in zip((2, 3), pairwise(chances), strict=True):
            errors.append(apart(after - before, p**size * (1 - p) + (1 - p) ** size * p))
        errors.append(apart(p, regularized(problem, 0.0)[0]))
    yield from each_form(worst(errors))


@claim("ZCPO-G1-d0")
def the_weak_pair_under_calibration() -> Iterator[Found]:
    """All drifts are .4 log 2 + .6 log .75 = .10465, and the weak pair gets tau and -tau."""
    drift = mean_drift(_example())[None]
    joint = calibrated(_rewards(TAU), drift, BETA)
    errors = [apart(drift, 0.4 * math.log(2) + 0.6 * math.log(0.75)), excess(float(drift[0, 0]), "0.10465")]
    errors += [apart(joint, _rewards(TAU)), apart(drift, exact(reverse_kl, _example())[0])]
    yield from each_form(worst(errors))


@claim("ZCPO-H-identity")
def mean_log_ratio_of_the_samplers_tokens() -> Iterator[Found]:
    """For tokens of the sampler itself the log-ratio has the KL there as its mean."""
    errors = []
    for problem in bandits():
        found = mean(terms(problem).p, log_ratio(problem))
        errors.append(apart(found, exact(reverse_kl, problem)[0]))
    yield from each_form(worst(errors))
