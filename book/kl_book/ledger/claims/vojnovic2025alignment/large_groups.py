"""Section 2.3.1: questions with two answers, in large groups (vojnovic2025alignment)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import sympy

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import (
    Form,
    Found,
    Shortfall,
    at_most,
    corrected,
    differs,
    less,
    numbers,
    printed,
    same,
)
from kl_book.ledger.claims.ground import two_answers as ab
from kl_book.ledger.claims.ground.errors import apart
from kl_book.ledger.claims.ground.stationary_policies import Question, right_or_wrong

OTHER = (100.0, -3.0)


def eq15(q: Question) -> float:
    """(15)."""
    beta, ref = q.beta, float(q.ref[0])
    root = (1 + 4 * beta**2 * ref * (1 - ref)) ** 0.5
    return (2 * beta**2 * ref + 1 + root) / (2 * (1 + beta**2))


def is_eq15(q: Question, form: Form = "printed") -> Shortfall:
    """The stationary policy is (15)."""
    return same(ab.answer_a(q), eq15(q), form)


def noise(q: Question) -> float:
    """sigma(pi) over r(a) - r(b), at the stationary policy."""
    return q.noise(ab.stationary_pair(q))


def _not_of_the_noise(q: Question) -> float:
    """Error of "(14) with sigma(pi)/(r(a) - r(b)) in the place of 1/gamma"."""
    return apart(ab.answer_a(q), ab.eq14(q.beta * noise(q), float(q.ref[0])))


def large() -> list[Question]:
    """Large groups, with certain and with random rewards."""
    return ab.pairs(*ab.KINDS, size=None)


def deterministic() -> list[Question]:
    """Large groups with certain rewards."""
    return ab.pairs(ab.CERTAIN, OTHER, size=None)


@claim("VY-eq15")
def the_policy_for_large_groups() -> Iterator[Found]:
    """(15) is the stationary policy for certain rewards; random ones, which 2.1 admits, have more noise."""
    for q in large():
        yield is_eq15(q)
        yield corrected(_not_of_the_noise(q))
    yield from (is_eq15(q, "inside") for q in deterministic())
    q, small = ab.pair(0.3, 0.5, ab.CHECKED, None), ab.pair(0.3, 0.04, ab.CHECKED, None)
    yield numbers(eq15=eq15(q), a=ab.answer_a(q), of_16=ab.answer_a(q._replace(size=16)))
    yield numbers(worse=1 - ab.answer_a(small), worse_eq15=1 - eq15(small))


TIED = (right_or_wrong(0.5), ((0.2, 0.7), (0.4, 0.6)))


@claim("VY-eq15-tie", over=lambda: (*ab.pairs(TIED, size=None), *ab.pairs((1.0, 1.0), size=8)))
def equal_expected_rewards_leave_the_reference(q: Question) -> Iterator[Found]:
    """Also for random rewards with the same mean, and for equal certain ones in finite groups."""
    yield same(ab.answer_a(q), q.ref[0])


@claim("VY-eq15-solely")
def noise_enters_the_policy() -> Iterator[Found]:
    """The same reference, beta and order of expected rewards, and another policy."""
    for ref, beta in product(ab.REFERENCES, ab.BETAS):
        values = [ab.answer_a(q) for q in ab.pairs(*ab.KINDS, refs=(ref,), betas=(beta,), size=None)]
        yield printed(max(values) - min(values))
    yield from (corrected(_not_of_the_noise(q)) for q in large())
    for ref in ab.REFERENCES:
        one, other = (
            ab.answer_a(q) for q in ab.pairs(OTHER, ab.CERTAIN, refs=(ref,), betas=(0.5,), size=None)
        )
        yield same(one, other, "corrected")
        yield same(one, other, "inside")
    q = ab.pair(0.3, 0.5, ab.CHECKED, None)
    x = ab.answer_a(q)
    beta_of_eq15 = (x * (1 - x)) ** 0.5 / (x - q.reference[0])  # from (19)
    certain = ab.answer_a(ab.pair(0.3, 0.5, ab.CERTAIN, None))
    yield numbers(certain=certain, noisy=x, beta_of_eq15=beta_of_eq15)


def _pull_of_the_reference(q: Question) -> float:
    """beta (pi(a) - ref(a)) / (pi(a) pi(b)), which grows with pi(a)."""
    a, b = ab.stationary_pair(q).tolist()
    return q.beta * (a - float(q.ref[0])) / (a * b)


def _saturated(x: float) -> float:
    """x / (1 + |x|)."""
    return x / (1 + abs(x))


@claim("VY-eq15-more")
def large_groups_against_groups_of_two() -> Iterator[Found]:
    """Large groups are nearer to the reward where (r(a) - r(b))/sigma(pi) is above gamma, and only there."""
    for small in ab.pairs(*ab.KINDS, ab.RARE):
        many = small._replace(size=None)
        yield less(ab.answer_a(small), ab.answer_a(many))
        gain = _pull_of_the_reference(many) - _pull_of_the_reference(small)
        excess = 1 / noise(many) - small.gamma
        yield same(_saturated(gain), _saturated(excess), "corrected")
    for small in ab.pairs(ab.CERTAIN, ab.CHECKED):
        yield less(ab.answer_a(small), ab.answer_a(small._replace(size=None)), "inside")
    small = ab.pair(0.3, 0.5, ab.RARE)
    yield numbers(of_two=ab.answer_a(small), of_many=ab.answer_a(small._replace(size=None)))


@claim("VY-eq15-discontinuous")
def the_jump_for_large_groups() -> Iterator[Found]:
    """For certain rewards pi(a) goes to 1/(1 + beta^2) as pi_ref(a) goes to 0."""
    yield from map(is_eq15, deterministic())
    for q in ab.pairs(ab.CERTAIN, refs=(ab.NEARLY_ZERO,), betas=(0.1, 1.0, 3.0), size=None):
        yield at_most(abs(ab.answer_a(q) - 1 / (1 + q.beta**2)), 100 * ab.NEARLY_ZERO)
        yield differs(ab.answer_a(q), 0.0)
    yield numbers(noisy=ab.answer_a(ab.pair(ab.NEARLY_ZERO, 3.0, ab.CHECKED, None)), reference=ab.NEARLY_ZERO)


@claim("VY-eq15-bound")
def the_better_answer_has_at_least_in_large_groups() -> Iterator[Found]:
    """For certain rewards pi(a) is at least 1/(1 + beta^2), and at least pi_ref(a)."""
    for q in deterministic():
        yield less(max(1 / (1 + q.beta**2), q.reference[0]), ab.answer_a(q), by=-1e-12)
        yield is_eq15(q)
    yield numbers(noisy=ab.answer_a(ab.pair(0.02, 0.5, ab.CHECKED, None)), bound=1 / (1 + 0.5**2))


@claim("VY-eq15-compare")
def the_bound_of_large_groups_is_larger() -> Iterator[Found]:
    """1 - (1 - beta)(1 + beta^2) is beta (1 - beta + beta^2), whose second factor has no real root."""
    b = sympy.Symbol("b", real=True)
    rest = sympy.cancel((1 - (1 - b) * (1 + b**2)) / b)
    yield printed(len(sympy.real_roots(rest)))
    yield at_most(0.0, float(rest.subs(b, 1)))


@claim("VY-2.3.1-symbol")
def the_probability_of_an_answer() -> Iterator[Found]:
    """Both bounds are of pi(a|q): the question is none of the two answers."""
    for ref, beta in product(ab.REFERENCES, (0.1, 0.5)):
        many, small = ab.pair(ref, beta, ab.CERTAIN, None), ab.pair(ref, beta)
        bounds = (1 / (1 + beta**2), eq15(many)), (1 - beta, ab.eq14(beta, float(small.ref[0])))
        for q, (lower, formula) in zip((many, small), bounds, strict=True):
            answers = dict(zip("ab", ab.stationary_pair(q).tolist(), strict=True))
            yield at_most(lower, answers.get("q", 0.0))
            yield at_most(lower, answers["a"], "corrected")
            yield same(answers["a"], formula, "corrected")
    yield numbers(bound=1 / (1 + 0.1**2))
