"""Section 2.3.1: questions with two answers, in large groups (vojnovic2025alignment)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import sympy

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, violation, worst
from kl_book.ledger.claims.ground.stationary_policies import (
    Question,
    Reward,
    deviation,
    expected_rewards,
)
from kl_book.ledger.claims.ground.two_answers import (
    BETAS,
    CERTAIN,
    CHECKED,
    GRADED,
    LARGE,
    NEARLY_ZERO,
    RARE,
    RARELY,
    REFERENCES,
    answer_a,
    eq14,
    margin,
    pair,
    ref_a,
    stationary_pair,
)


def eq15(beta: float, ref: float) -> float:
    """(15)."""
    root = (1 + 4 * beta**2 * ref * (1 - ref)) ** 0.5
    return (2 * beta**2 * ref + 1 + root) / (2 * (1 + beta**2))


def noise(q: Question) -> float:
    """sigma(pi) over r(a) - r(b), at the stationary policy."""
    a, b = expected_rewards(q).tolist()
    return float(deviation(q, stationary_pair(q))) / (a - b)


def not_eq15(q: Question) -> float:
    """By how much the stationary policy misses (15)."""
    return apart(answer_a(q), eq15(q.beta, ref_a(q)))


@cache
def large(kinds: tuple[tuple[Reward, Reward], ...] = (CERTAIN, CHECKED, GRADED)) -> tuple[Question, ...]:
    """Large groups, with certain and with random rewards."""
    return tuple(pair(*x, size=None) for x in itertools.product(REFERENCES, BETAS, kinds))


def _certain() -> tuple[Question, ...]:
    return large((CERTAIN, (100.0, -3.0)))


def _not_of_the_noise(q: Question) -> float:
    """Error of "(14) with sigma(pi)/(r(a) - r(b)) in the place of 1/gamma"."""
    return apart(answer_a(q), eq14(q.beta * noise(q), ref_a(q)))


def _example() -> tuple[Question, Question]:
    """The same question with large groups and with groups of 16."""
    q = pair(0.3, 0.5, CHECKED, None)
    return q, q._replace(size=16)


@claim("VY-eq15")
def the_policy_for_large_groups() -> Iterator[Found]:
    """(15) is the stationary policy for certain rewards; random ones, which 2.1 admits, have more noise."""
    q, finite = _example()
    small = pair(0.3, 0.04, CHECKED, None)
    yield from each_form(
        worst([not_eq15(x) for x in large()]),
        worst([_not_of_the_noise(x) for x in large()]),
        inside=worst([not_eq15(x) for x in _certain()]),
        number=0.9,
        number_2=0.1,
        number_3=q.reference[0],
        beta=q.beta,
        eq15=eq15(q.beta, q.reference[0]),
        answer_a_q=answer_a(q),
        answer_a_finite=answer_a(finite),
        size=finite.size,
        beta_2=small.beta,
        number_4=1 - answer_a(small),
        number_5=1 - eq15(small.beta, small.reference[0]),
    )


@claim("VY-eq15-tie")
def equal_expected_rewards_leave_the_reference() -> Iterator[Found]:
    """Also for random rewards with the same mean, and for equal certain ones in finite groups."""
    even = ((0.0, 1.0), (0.5, 0.5))
    other = ((0.2, 0.7), (0.4, 0.6))
    errors = []
    for ref, beta in itertools.product(REFERENCES, (0.1, 1.0)):
        for q in (pair(ref, beta, (even, other), None), pair(ref, beta, (1.0, 1.0), 8)):
            errors.append(apart(answer_a(q), ref_a(q)))
    yield from each_form(worst(errors))


@claim("VY-eq15-solely")
def noise_enters_the_policy() -> Iterator[Found]:
    """The same reference, beta and order of expected rewards, and another policy."""
    spread = []
    for ref, beta in itertools.product(REFERENCES, BETAS):
        values = [answer_a(pair(ref, beta, kind, None)) for kind in (CERTAIN, CHECKED, GRADED)]
        spread.append(max(values) - min(values))
    certain = [
        apart(answer_a(pair(ref, 0.5, (100.0, -3.0), None)), answer_a(pair(ref, 0.5, CERTAIN, None)))
        for ref in REFERENCES
    ]
    q, _ = _example()
    yield from each_form(
        worst(spread),
        worst([*(_not_of_the_noise(x) for x in large()), *certain]),
        inside=worst(certain),
        number=q.reference[0],
        beta=q.beta,
        answer_a=answer_a(pair(0.3, 0.5, CERTAIN, None)),
        number_2=0.9,
        number_3=0.1,
        answer_a_q=answer_a(q),
        same_beta_q=_same_beta(q),
    )


def _same_beta(q: Question) -> float:
    """The beta at which (15) gives the policy of the question: from (19)."""
    x, ref = answer_a(q), q.reference[0]
    return float((x * (1 - x)) ** 0.5 / (x - ref))


def _pull_of_the_reference(q: Question) -> float:
    """beta (pi(a) - ref(a)) / (pi(a) pi(b)), which grows with pi(a)."""
    a, b = stationary_pair(q).tolist()
    return q.beta * (a - ref_a(q)) / (a * b)


def _both(kinds: tuple[tuple[Reward, Reward], ...]) -> Iterator[tuple[Question, Question]]:
    """The same questions with groups of two and with large groups."""
    for ref, beta, kind in itertools.product(REFERENCES, BETAS, kinds):
        yield pair(ref, beta, kind), pair(ref, beta, kind, None)


@claim("VY-eq15-more")
def large_groups_against_groups_of_two() -> Iterator[Found]:
    """Large groups are nearer to the reward where (r(a) - r(b))/sigma(pi) is above gamma, and only there."""
    printed, corrected = [], []
    for two, many in _both((CERTAIN, CHECKED, GRADED, RARE)):
        printed.append(less(answer_a(two), answer_a(many)))
        gain = _pull_of_the_reference(many) - _pull_of_the_reference(two)
        corrected.append(apart(gain / (1 + abs(gain)), _saturated(1 / noise(many) - margin(two))))
    inside = [less(answer_a(two), answer_a(many)) for two, many in _both((CERTAIN, CHECKED))]
    two, many = pair(0.3, 0.5, RARE), pair(0.3, 0.5, RARE, None)
    rates = [x / 10 for x in range(11)]
    factor = min(1 / (p * (1 - p)) ** 0.5 for p in rates if 0 < p < 1)
    yield from each_form(
        worst(printed),
        worst(corrected),
        inside=worst(inside),
        LARGE=LARGE,
        RARELY=RARELY,
        answer_a_two=answer_a(two),
        answer_a_many=answer_a(many),
        factor=factor,
    )


def _saturated(x: float) -> float:
    """x / (1 + |x|)."""
    return x / (1 + abs(x))


@claim("VY-eq15-discontinuous")
def the_jump_for_large_groups() -> Iterator[Found]:
    """For certain rewards pi(a) goes to 1/(1 + beta^2) as pi_ref(a) goes to 0."""
    errors = [not_eq15(q) for q in _certain()]
    for beta in (0.1, 1.0, 3.0):
        q = pair(NEARLY_ZERO, beta, CERTAIN, None)
        limit = 1 / (1 + beta**2)
        errors += [violation(abs(answer_a(q) - limit) - 100 * NEARLY_ZERO), differs(answer_a(q), 0.0)]
    noisy = pair(NEARLY_ZERO, 3.0, CHECKED, None)
    yield from each_form(worst(errors), answer_a_noisy=answer_a(noisy), NEARLY_ZERO=NEARLY_ZERO)


@claim("VY-eq15-bound")
def the_better_answer_has_at_least_in_large_groups() -> Iterator[Found]:
    """For certain rewards pi(a) is at least 1/(1 + beta^2), and at least pi_ref(a)."""
    errors = []
    for q in _certain():
        lower = max(1 / (1 + q.beta**2), q.reference[0])
        errors += [violation(lower - answer_a(q) - 1e-12), not_eq15(q)]
    noisy = pair(0.02, 0.5, CHECKED, None)
    yield from each_form(worst(errors), answer_a_noisy=answer_a(noisy), number=1 / (1 + noisy.beta**2))


@claim("VY-eq15-compare")
def the_bound_of_large_groups_is_larger() -> Iterator[Found]:
    """1 - (1 - beta)(1 + beta^2) is beta (1 - beta + beta^2), whose second factor has no real root."""
    b = sympy.Symbol("b", real=True)
    rest = sympy.cancel((1 - (1 - b) * (1 + b**2)) / b)
    roots, at_one = sympy.real_roots(rest), float(rest.subs(b, 1))
    yield from each_form(worst([float(len(roots)), violation(-at_one)]))


@claim("VY-2.3.1-symbol")
def the_probability_of_an_answer() -> Iterator[Found]:
    """Both bounds are of pi(a|q): the question is none of the two answers."""
    printed, corrected = [], []
    for ref, beta in itertools.product(REFERENCES, (0.1, 0.5)):
        many, two = pair(ref, beta, CERTAIN, None), pair(ref, beta)
        for q, lower, formula in (
            (many, 1 / (1 + beta**2), eq15(beta, ref_a(many))),
            (two, 1 - beta, eq14(beta, ref_a(two))),
        ):
            given = dict(zip("ab", stationary_pair(q).tolist(), strict=True))
            printed.append(violation(lower - given.get("q", 0.0)))
            corrected += [violation(lower - given["a"]), apart(given["a"], formula)]
    yield from each_form(worst(printed), worst(corrected), number=1 / (1 + 0.1**2))
