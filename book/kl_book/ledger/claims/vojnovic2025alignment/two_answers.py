"""Section 2.3.1: questions with two answers, in groups of two and in large groups (vojnovic2025alignment)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import sympy

from kl_book.ledger.claims.checks import claim, claim_rows
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
    rises,
    same,
)
from kl_book.ledger.claims.ground import questions as ab
from kl_book.ledger.claims.ground.errors import apart

OTHER = (100.0, -3.0)


def eq15(q: ab.Question) -> float:
    """(15)."""
    beta, ref = q.beta, float(q.ref[0])
    root = (1 + 4 * beta**2 * ref * (1 - ref)) ** 0.5
    return (2 * beta**2 * ref + 1 + root) / (2 * (1 + beta**2))


def is_printed(q: ab.Question, form: Form = "printed") -> Shortfall:
    """The stationary policy is (14) in groups of two, (15) in large groups."""
    policy = eq15(q) if q.size is None else ab.eq14(q.beta / q.gamma, float(q.ref[0]))
    return same(ab.answer_a(q), policy, form)


def noise(q: ab.Question) -> float:
    """sigma(pi) over r(a) - r(b), at the stationary policy."""
    return q.noise(ab.stationary_pair(q))


def _not_of_the_noise(q: ab.Question) -> float:
    """Error of "(14) with sigma(pi)/(r(a) - r(b)) in the place of 1/gamma"."""
    return apart(ab.answer_a(q), ab.eq14(q.beta * noise(q), float(q.ref[0])))


SMALL = ab.pairs(*ab.KINDS)  # groups of two, near to and far from the reference, certain and random rewards
LARGE = ab.pairs(*ab.KINDS, size=None)
DETERMINISTIC = ab.pairs(ab.CERTAIN, OTHER, size=None)


def a_tie_leaves_the_reference(q: ab.Question) -> Iterator[Found]:
    """Equally often preferred answers, or those of one mean in large groups, keep their probabilities."""
    yield same(ab.answer_a(q), q.ref[0])


TIED = (ab.right_or_wrong(0.5), ((0.2, 0.7), (0.4, 0.6)))
claim_rows(
    a_tie_leaves_the_reference,
    {
        "VY-eq14-tie": ab.pairs((1.0, 1.0), (ab.right_or_wrong(0.5), 0.5)),
        "VY-eq15-tie": (*ab.pairs(TIED, size=None), *ab.pairs((1.0, 1.0), size=8)),
    },
)


@claim("VY-eq14")
def the_policy_for_groups_of_two() -> Iterator[Found]:
    """With equal slopes of both answers in groups of the policy itself, pi(a) is (14)."""
    yield from map(is_printed, SMALL)
    gains = {q: q.could_gain(ab.stationary_pair(q)) for q in SMALL}
    no_maximum = [q for q, gain in gains.items() if gain > 1e-9]
    worst = max(no_maximum, key=lambda q: gains[q])
    yield numbers(no_maximum=len(no_maximum), questions=len(gains), reference=worst.reference[0])
    yield numbers(ratio=worst.beta / worst.gamma, a=ab.answer_a(worst), gain=gains[worst])


@claim("VY-eq14-beta", over=lambda: ab.REFERENCES)
def what_beta_does_in_groups_of_two(ref: float) -> Iterator[Found]:
    """The same ratio gives the same policy; a larger beta a smaller pi(a), from 1 down to the reference."""
    for beta in ab.BETAS:
        q, noisy = ab.pair(ref, beta), ab.pair(ref, beta * 0.8, ab.CHECKED)  # gamma is 1 and 0.8
        yield same(ab.answer_a(q), ab.answer_a(noisy))
        yield is_printed(q)
    path = ab.pairs(ab.GRADED, refs=(ref,), betas=(1e4, 1.0, 0.1, 1e-4))
    values = [ab.answer_a(q) for q in path]
    yield rises(values)
    yield at_most(1 - values[-1], 1e-4 / path[-1].gamma)
    yield at_most(abs(values[0] - path[0].ref[0]), path[0].gamma / 1e4)


@claim("VY-eq14-sqrt", over=lambda: SMALL)
def the_root_of_the_reference(q: ab.Question) -> Iterator[Found]:
    """At beta = gamma pi(a) is the root of pi_ref(a)."""
    yield same(ab.answer_a(q._replace(beta=q.gamma)), q.ref[0] ** 0.5)


@claim("VY-eq14-increasing", over=lambda: ab.BETAS)
def margin_and_reference_raise_the_better_answer(beta: float) -> Iterator[Found]:
    """pi(a) grows with gamma and with pi_ref(a)."""
    for ref in ab.REFERENCES:
        path = [ab.pair(ref, beta, (ab.right_or_wrong(x), ab.right_or_wrong(0.1))) for x in (0.2, 0.5, 0.9)]
        yield rises([ab.answer_a(q) for q in path])
        yield rises([q.gamma for q in path])
        yield from map(is_printed, path)
    yield rises([ab.answer_a(ab.pair(ref, beta)) for ref in (0.001, *ab.REFERENCES, 0.99)])


@claim("VY-eq14-discontinuous", over=lambda: (ab.CERTAIN, ab.GRADED))
def the_jump_for_groups_of_two(rewards: tuple[ab.Reward, ab.Reward]) -> Iterator[Found]:
    """As pi_ref(a) goes to 0 pi(a) goes to 1 - beta/gamma, or to 0 where beta is gamma or more."""
    rare = ab.pair(ab.NEARLY_ZERO, 1.0, rewards)
    for share in (0.1, 0.5, 0.9):
        a = ab.answer_a(rare._replace(beta=share * rare.gamma))
        yield at_most(abs(a - (1 - share)), 10 * ab.NEARLY_ZERO / (1 - share))
    for share in (1.0, 2.0):
        yield at_most(ab.answer_a(rare._replace(beta=share * rare.gamma)), 2 * ab.NEARLY_ZERO**0.5)
    for ref in ab.REFERENCES[:2]:
        near, next_to_it = ab.pairs(rewards, refs=(ref, ref + 1e-7), betas=(0.1,))
        yield from map(is_printed, (near, next_to_it))
        yield at_most(abs(ab.answer_a(next_to_it) - ab.answer_a(near)), 1e-6)


@claim("VY-eq14-bound", over=lambda: SMALL)
def the_better_answer_has_at_least(q: ab.Question) -> Iterator[Found]:
    """pi(a) is at least 1 - beta/gamma, and at least pi_ref(a)."""
    yield less(max(1 - q.beta / q.gamma, q.reference[0]), ab.answer_a(q), by=-1e-12)
    yield is_printed(q)
    yield numbers(once_in_a_million=ab.answer_a(ab.pair(1e-6, 0.04)))


@claim("VY-eq15-bound", over=lambda: DETERMINISTIC)
def the_better_answer_has_at_least_in_large_groups(q: ab.Question) -> Iterator[Found]:
    """For certain rewards pi(a) is at least 1/(1 + beta^2), and at least pi_ref(a)."""
    yield less(max(1 / (1 + q.beta**2), q.reference[0]), ab.answer_a(q), by=-1e-12)
    yield is_printed(q)
    yield numbers(noisy=ab.answer_a(ab.pair(0.02, 0.5, ab.CHECKED, None)), bound=1 / (1 + 0.5**2))


@claim("VY-eq14-det", over=lambda: ab.pairs(ab.CERTAIN, OTHER, (0.001, 0.0)))
def only_the_order_of_certain_rewards(q: ab.Question) -> Iterator[Found]:
    """Certain rewards (1, 0), (100, -3) and (0.001, 0) have the margin 1 and the same policy."""
    yield same(q.gamma, 1.0)
    yield same(ab.answer_a(q), ab.eq14(q.beta, float(q.ref[0])))


# large groups


@claim("VY-eq15")
def the_policy_for_large_groups() -> Iterator[Found]:
    """(15) is the stationary policy for certain rewards; random ones, which 2.1 admits, have more noise."""
    for q in LARGE:
        yield is_printed(q)
        yield corrected(_not_of_the_noise(q))
    yield from (is_printed(q, "inside") for q in DETERMINISTIC)
    q, small = ab.pair(0.3, 0.5, ab.CHECKED, None), ab.pair(0.3, 0.04, ab.CHECKED, None)
    yield numbers(eq15=eq15(q), a=ab.answer_a(q), of_16=ab.answer_a(q._replace(size=16)))
    yield numbers(worse=1 - ab.answer_a(small), worse_eq15=1 - eq15(small))


@claim("VY-eq15-solely")
def noise_enters_the_policy() -> Iterator[Found]:
    """The same reference, beta and order of expected rewards, and another policy."""
    for ref, beta in product(ab.REFERENCES, ab.BETAS):
        values = [ab.answer_a(q) for q in ab.pairs(*ab.KINDS, refs=(ref,), betas=(beta,), size=None)]
        yield printed(max(values) - min(values))
    yield from (corrected(_not_of_the_noise(q)) for q in LARGE)
    for ref in ab.REFERENCES:
        one, other = (ab.answer_a(ab.pair(ref, 0.5, rewards, None)) for rewards in (OTHER, ab.CERTAIN))
        yield same(one, other, "corrected")
        yield same(one, other, "inside")
    q = ab.pair(0.3, 0.5, ab.CHECKED, None)
    x = ab.answer_a(q)
    beta_of_eq15 = (x * (1 - x)) ** 0.5 / (x - q.reference[0])  # from (19)
    certain = ab.answer_a(ab.pair(0.3, 0.5, ab.CERTAIN, None))
    yield numbers(certain=certain, noisy=x, beta_of_eq15=beta_of_eq15)


def _pull_of_the_reference(q: ab.Question) -> float:
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
    yield from map(is_printed, DETERMINISTIC)
    for q in ab.pairs(ab.CERTAIN, refs=(ab.NEARLY_ZERO,), betas=(0.1, 1.0, 3.0), size=None):
        yield at_most(abs(ab.answer_a(q) - 1 / (1 + q.beta**2)), 100 * ab.NEARLY_ZERO)
        yield differs(ab.answer_a(q), 0.0)
    yield numbers(noisy=ab.answer_a(ab.pair(ab.NEARLY_ZERO, 3.0, ab.CHECKED, None)), reference=ab.NEARLY_ZERO)


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
    for ref, beta, size in product(ab.REFERENCES, (0.1, 0.5), (None, 2)):
        q, lower = ab.pair(ref, beta, size=size), 1 - beta if size else 1 / (1 + beta**2)
        answers = dict(zip("ab", ab.stationary_pair(q).tolist(), strict=True))
        yield at_most(lower, answers.get("q", 0.0))
        yield at_most(lower, answers["a"], "corrected")
        yield is_printed(q, "corrected")
    yield numbers(bound=1 / (1 + 0.1**2))
