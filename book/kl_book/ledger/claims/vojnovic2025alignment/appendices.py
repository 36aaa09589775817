"""Appendix B: questions with two answers, step by step (vojnovic2025alignment)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.group_objective import policy_mean
from kl_book.ledger.claims.ground.off_policy import rho
from kl_book.ledger.claims.ground.stationary_policies import (
    Question,
    Reward,
    deviation,
    expected_rewards,
    levels_and_chances,
    margins,
    objective,
    preference,
    reference_of,
)
from kl_book.ledger.claims.ground.sums import mean, terms, variance
from kl_book.ledger.claims.ground.two_answers import (
    BETAS,
    CERTAIN,
    CHECKED,
    GRADED,
    REFERENCES,
    all_stationary_pairs,
    answer_a,
    lead,
    margin,
    pair,
    ref_a,
    stationary_pair,
    weighted,
    with_odds,
)
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere
from kl_companion.tabular import Problem

KINDS = (CERTAIN, CHECKED, GRADED)
POINTS = torch.tensor([0.05, 0.2, 0.5, 0.7, 0.95], dtype=torch.float64)


def _pairs_sampled_elsewhere() -> list[Problem]:
    """Two answers, sampled by another policy."""
    return [p for p in sampled_elsewhere() if len(p.sequences) == 2]


@claim("VY-eq16")
def the_mean_preference_in_groups_of_two() -> Iterator[Found]:
    """gamma (pi(a) - pi_old(a)), for certain and random rewards."""
    errors = []
    for problem, rewards in itertools.product(_pairs_sampled_elsewhere(), KINDS):
        q, old = pair(0.3, 1.0, rewards), terms(problem).p
        new = old * rho(problem)
        wanted = margins(q)[0, 1] * (new[0] - old[0])
        errors.append(apart(policy_mean(problem, preference(q, old))[0], wanted))
    yield from each_form(worst(errors))


def _printed_objective(q: Question, x: torch.Tensor, old: float) -> torch.Tensor:
    """J(pi(a)) of B.1 without its constant, groups of two, [points]."""
    ref = reference_of(q)[0]
    cost = old * ref / x + (1 - old) * (1 - ref) / (1 - x) + old * x.log() + (1 - old) * (1 - x).log()
    return margins(q)[0, 1] * x - q.beta * cost


@claim("VY-B1-J")
def the_objective_in_one_variable() -> Iterator[Found]:
    """Differences of values between policies are those of the objective, in groups of any sampler."""
    errors = []
    for rewards, old in itertools.product(KINDS, (0.1, 0.5, 0.8)):
        q, sampler = pair(0.3, 0.7, rewards), torch.tensor([old, 1 - old], dtype=torch.float64)
        found = objective(q, torch.stack((POINTS, 1 - POINTS), -1), sampler)
        printed = _printed_objective(q, POINTS, old)
        errors.append(apart(printed - printed[0], found - found[0]))
    yield from each_form(worst(errors))


@claim("VY-eq17")
def the_slope_in_groups_of_two() -> Iterator[Found]:
    """gamma minus beta (pi - ref)/(pi (1 - pi)) at a: zero exactly where (17) holds."""
    errors = []
    for rewards, x in itertools.product(KINDS, (-3.0, -1.0, 0.5, 2.0)):
        q = pair(0.3, 0.7, rewards)
        a, b = with_odds(x).tolist()
        wanted = margin(q) - q.beta * (a - ref_a(q)) / (a * b)
        errors.append(apart(lead(q, x), wanted))
    yield from each_form(worst(errors))


@claim("VY-B1-quad")
def the_quadratic_for_groups_of_two() -> Iterator[Found]:
    """The stationary policy is its positive root, and the other root is negative."""
    errors = []
    for ref, beta, rewards in itertools.product(REFERENCES, (0.1, 1.0), KINDS):
        q = pair(ref, beta, rewards)
        ratio, x = beta / margin(q), answer_a(q)
        errors.append(apart(x**2 - (1 - ratio) * x - ratio * ref_a(q), 0.0))
        errors.append(violation(1 - ratio - x))  # the other root: the two add up to 1 - ratio
    yield from each_form(worst(errors))


def _printed_gain(new: torch.Tensor, old: torch.Tensor) -> float:
    """(18) where a has the larger expected reward."""
    return float(new[0] / (old[0] * old[1]).sqrt() - (old[0] / old[1]).sqrt())


@claim("VY-eq18")
def the_mean_preference_in_large_groups() -> Iterator[Found]:
    """(18) is right for certain rewards; random ones have a larger deviation."""
    printed, corrected, inside = [], [], []
    for problem, rewards in itertools.product(_pairs_sampled_elsewhere(), KINDS):
        q, old = pair(0.3, 1.0, rewards, None), terms(problem).p
        new = old * rho(problem)
        found = policy_mean(problem, preference(q, old))[0]
        a, b = expected_rewards(q)
        error = apart(found, _printed_gain(new, old))
        printed.append(error)
        corrected.append(apart(found, (a - b) * (new[0] - old[0]) / deviation(q, old)))
        if rewards == CERTAIN:
            inside.append(error)
    old, new = with_odds(0.0), with_odds(1.0)
    right = float((new - old) @ preference(pair(0.3, 1.0, CHECKED, None), old))
    yield from each_form(
        worst(printed),
        worst(corrected),
        inside=worst(inside),
        float=float(old[0]),
        float_2=float(new[0]),
        printed_gain_new=_printed_gain(new, old),
        right=right,
        number=1 - right / _printed_gain(new, old),
    )


@claim("VY-B1-sigma")
def the_variance_of_the_reward() -> Iterator[Found]:
    """The printed variance is that of the expected rewards; random rewards add their own."""
    printed, corrected, inside = [], [], []
    for problem, rewards in itertools.product(_pairs_sampled_elsewhere(), KINDS):
        q, old = pair(0.3, 1.0, rewards, None), terms(problem).p
        (levels, chances), r = levels_and_chances(q), expected_rewards(q)
        found = variance((old[:, None] * chances).flatten(), levels.flatten())
        own = mean(old, (levels - r[:, None]).square().mul(chances).sum(-1))
        between = (r[0] - r[1]).square() * old[0] * old[1]
        error = apart(found, between)
        printed.append(float(1 - between / found))
        corrected.append(apart(found, between + own))
        if rewards == CERTAIN:
            inside.append(error)
    q, even = pair(0.3, 1.0, CHECKED, None), with_odds(0.0)
    r = expected_rewards(q)
    yield from each_form(
        worst([*printed, *inside]),
        worst(corrected),
        inside=worst(inside),
        number=float(deviation(q, even)) ** 2,
        float=float((r[0] - r[1]) ** 2 * even[0] * even[1]),
        number_2=0.9 * 0.1,
    )


@claim("VY-eq19")
def the_quadratic_for_large_groups() -> Iterator[Found]:
    """The printed objective has slope 0 at the root of the quadratic above the reference, and only there."""
    errors = []
    for ref, beta in itertools.product(REFERENCES, BETAS):
        q = pair(ref, beta, CERTAIN, None)
        (a, b), r = stationary_pair(q).tolist(), ref_a(q)
        errors.append(apart(beta * (a - r), math.sqrt(a * b)))
        errors.append(apart((1 + beta**2) * a**2 - (2 * beta**2 * r + 1) * a + beta**2 * r**2, 0.0))
        other = (2 * beta**2 * r + 1) / (1 + beta**2) - a  # the two roots add up to this
        errors += [less(other, r), less(r, a)]
    yield from each_form(worst(errors))


# appendix B.2


def h(beta: float, ref: float, x: float) -> float:
    """The function of appendix B.2; not a number where it is not real."""
    inside = x * (1 - x)
    if inside <= 0:
        return math.nan
    return 1 / (beta * math.sqrt(inside)) - math.log(x / (1 - x)) + math.log(ref / (1 - ref))


def _large(ref: float, beta: float) -> Question:
    """The KL divergence as the penalty, large groups, certain rewards."""
    return weighted(ref, beta, CERTAIN, None)


@claim("VY-B2-derivative")
def the_slope_with_the_divergence() -> Iterator[Found]:
    """The slope of a minus that of b is beta h, where the sampler is the policy."""
    errors = []
    for ref, beta, x in itertools.product(REFERENCES, (0.3, 5.0), (-3.0, 0.5, 2.0)):
        q = _large(ref, beta)
        errors.append(apart(lead(q, x), beta * h(beta, ref_a(q), float(with_odds(x)[0]))))
    yield from each_form(worst(errors))


def _sign_of_a_true_comparison() -> float:
    return float(torch.sign(torch.tensor(1.0 > 0.0).double()))


@claim("VY-B2-gamma")
def the_sign_of_the_difference() -> Iterator[Found]:
    """The sign of a difference is meant: that of a comparison is 0, not -1, where b is better."""
    printed, corrected = [], []
    rewards: tuple[tuple[Reward, Reward], ...] = (CERTAIN, (0.0, 1.0), (-3.0, 2.0))
    for problem, kind in itertools.product(_pairs_sampled_elsewhere(), rewards):
        q, old = pair(0.3, 1.0, kind, None), terms(problem).p
        a, b = expected_rewards(q)
        gain = policy_mean(problem, preference(q, old))[0]
        wanted = gain * float((old[0] * old[1]).sqrt()) / float((old * rho(problem))[0] - old[0])
        printed.append(apart(torch.sign((a > b).double()), wanted))
        corrected.append(apart(torch.sign(a - b), wanted))
    yield from each_form(
        worst(printed),
        worst(corrected),
        float=float(torch.sign(torch.tensor(0.0 > 1.0).double())),
        sign_of_a_true_comparison=_sign_of_a_true_comparison(),
    )


@claim("VY-B2-xstar")
def where_h_is_smallest() -> Iterator[Found]:
    """The slope falls up to x* and rises after it."""
    errors = []
    for ref, beta in itertools.product(REFERENCES, (0.3, 1.0, 5.0)):
        q, middle = _large(ref, beta), 2 * math.asinh(beta)  # log-odds of x*
        star = (1 + math.sqrt(1 - 1 / (1 + beta**2))) / 2
        errors.append(apart(with_odds(middle)[0], star))
        before = [lead(q, middle - x) for x in (5.0, 1.0, 0.1, 0.0)]
        after = [lead(q, middle + x) for x in (0.0, 0.1, 1.0, 5.0)]
        errors += [less(b, a) for a, b in pairwise(before)] + [less(a, b) for a, b in pairwise(after)]
        errors.append(apart(lead(q, middle), beta * h(beta, ref_a(q), star)))
    yield from each_form(worst(errors))


@claim("VY-B2-limits")
def limits_at_both_ends() -> Iterator[Found]:
    """Towards 0 from above and 1 from below h grows without bound; from the other sides it is not real."""
    steps = (1e-4, 1e-8, 1e-12)
    outside, corrected = [], []
    for ref, beta in itertools.product(REFERENCES, (0.3, 5.0)):
        outside += [math.isnan(h(beta, ref, x)) for step in steps for x in (-step, 1 + step)]
        for side in (-1.0, 1.0):
            far = [2 * math.log(10.0) * side * n for n in (2, 4, 6)]
            at = [with_odds(x) for x in far]
            ends = [
                apart(lead(_large(ref, beta), x) * float((p[0] * p[1]).sqrt()), 1.0)
                for x, p in zip(far, at, strict=True)
            ]
            corrected += [violation(b - 0.1 * a) for a, b in pairwise(ends)]
            q, near = _large(ref, beta), float(at[0][0])
            corrected.append(apart(lead(q, far[0]) / beta / h(beta, ref_a(q), near), 1.0))
    yield from each_form(
        sum(outside) / len(outside),
        worst(corrected),
        number=-1e-4 * (1 + 1e-4),
        number_of_outside=len(outside),
    )


@claim("VY-B2-zeros")
def zeros_of_h() -> Iterator[Found]:
    """For small beta a leads everywhere; for large beta two policies have no slope."""
    errors, limits = [], []
    for ref in REFERENCES:
        small, big = _large(ref, 0.3), _large(ref, 8.0)
        errors += [violation(-lead(small, float(x))) for x in range(-15, 16)]
        found = all_stationary_pairs(big)
        errors.append(apart(float(len(found)), 2.0))
        errors += [abs(h(8.0, ref_a(big), float(p[0]))) for p in found]
        limits.append(_threshold(ref))
    yield from each_form(
        worst(errors),
        note=r"The two cases meet at $\beta$ = "
        + ", ".join(f"{x:.2f}" for x in limits)
        + rf" for $\pref(a)$ = {', '.join(map(str, REFERENCES))}.",
    )


def _threshold(ref: float) -> float:
    """The beta at which the smallest value of h is 0, by bisection."""
    low, high = 0.01, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        above = h(middle, ref, (1 + math.sqrt(1 - 1 / (1 + middle**2))) / 2) > 0
        low, high = (middle, high) if above else (low, middle)
    return low
