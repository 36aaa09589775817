"""Section 2.3.1: questions with two answers, in groups of two (vojnovic2025alignment)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.stationary_policies import (
    Question,
    Reward,
    could_gain,
    right_or_wrong,
)
from kl_book.ledger.claims.ground.two_answers import (
    BETAS,
    CERTAIN,
    CHECKED,
    GRADED,
    NEARLY_ZERO,
    REFERENCES,
    answer_a,
    eq14,
    margin,
    pair,
    ref_a,
    stationary_pair,
)


@cache
def pairs() -> tuple[Question, ...]:
    """Groups of two: near to and far from the reference, with certain and with random rewards."""
    kinds = itertools.product(REFERENCES, BETAS, (CERTAIN, CHECKED, GRADED))
    return tuple(pair(ref, beta, rewards) for ref, beta, rewards in kinds)


def not_eq14(q: Question) -> float:
    """By how much the stationary policy misses (14)."""
    return apart(answer_a(q), eq14(q.beta / margin(q), ref_a(q)))


@claim("VY-eq14")
def the_policy_for_groups_of_two() -> Iterator[Found]:
    """Where both answers have the same slope in groups of the policy itself, pi(a) is (14)."""
    no_maximum = [q for q in pairs() if could_gain(q, stationary_pair(q)) > 1e-9]
    worst_case = max(no_maximum, key=lambda q: could_gain(q, stationary_pair(q)))
    yield from each_form(
        worst([not_eq14(q) for q in pairs()]),
        number_of_no_maximum=len(no_maximum),
        number=len(pairs()),
        number_2=worst_case.reference[0],
        number_3=worst_case.beta / margin(worst_case),
        answer_a_worst_case=answer_a(worst_case),
        could_gain_worst_case=could_gain(worst_case, stationary_pair(worst_case)),
    )


@claim("VY-eq14-tie")
def a_tie_leaves_the_reference() -> Iterator[Found]:
    """Equally often preferred answers, certain or random, keep their reference probabilities."""
    even = ((0.0, 1.0), (0.5, 0.5))
    cases = [pair(r, b, kind) for r in REFERENCES for b in (0.1, 1.0) for kind in ((1.0, 1.0), (even, 0.5))]
    yield from each_form(worst([apart(answer_a(q), ref_a(q)) for q in cases]))


@claim("VY-eq14-beta")
def what_beta_does_in_groups_of_two() -> Iterator[Found]:
    """The same ratio gives the same policy; a larger beta a smaller pi(a), from 1 down to the reference."""
    errors = []
    for ref in REFERENCES:
        for beta in (0.1, 1.0):
            q, noisy = pair(ref, beta), pair(ref, beta * 0.8, CHECKED)  # gamma is 1 and 0.8
            errors += [apart(answer_a(q), answer_a(noisy)), not_eq14(q)]
        path = [pair(ref, beta, GRADED) for beta in (1e-4, 0.1, 1.0, 1e4)]
        values = [answer_a(q) for q in path]
        errors += [less(b, a) for a, b in itertools.pairwise(values)]
        errors.append(violation(1 - values[0] - 1e-4 / margin(path[0])))
        errors.append(violation(abs(values[-1] - ref_a(path[-1])) - margin(path[-1]) / 1e4))
    yield from each_form(worst(errors))


@claim("VY-eq14-sqrt")
def the_root_of_the_reference() -> Iterator[Found]:
    """At beta = gamma pi(a) is the root of pi_ref(a)."""
    cases = [pair(ref, beta, rewards) for ref in REFERENCES for rewards, beta in _at_the_margin()]
    yield from each_form(worst([apart(answer_a(q), ref_a(q) ** 0.5) for q in cases]))


def _at_the_margin() -> list[tuple[tuple[Reward, Reward], float]]:
    return [(rewards, margin(pair(0.5, 1.0, rewards))) for rewards in (CERTAIN, CHECKED, GRADED)]


@claim("VY-eq14-increasing")
def margin_and_reference_raise_the_better_answer() -> Iterator[Found]:
    """pi(a) grows with gamma and with pi_ref(a)."""
    errors = []
    for beta in BETAS:
        for ref in REFERENCES:
            cases = [pair(ref, beta, (right_or_wrong(x), right_or_wrong(0.1))) for x in (0.2, 0.5, 0.9)]
            errors += [less(answer_a(a), answer_a(b)) for a, b in itertools.pairwise(cases)]
            errors += [less(margin(a), margin(b)) for a, b in itertools.pairwise(cases)]
            errors += [not_eq14(q) for q in cases]
        cases = [pair(ref, beta) for ref in (0.001, *REFERENCES, 0.99)]
        errors += [less(answer_a(a), answer_a(b)) for a, b in itertools.pairwise(cases)]
    yield from each_form(worst(errors))


@claim("VY-eq14-discontinuous")
def the_jump_for_groups_of_two() -> Iterator[Found]:
    """As pi_ref(a) goes to 0 pi(a) goes to 1 - beta/gamma, or to 0 where beta is gamma or more."""
    errors = []
    for rewards in (CERTAIN, GRADED):
        for share in (0.1, 0.5, 0.9):
            q = pair(NEARLY_ZERO, share * margin(pair(0.5, 1.0, rewards)), rewards)
            errors.append(violation(abs(answer_a(q) - (1 - share)) - 10 * NEARLY_ZERO / (1 - share)))
        for share in (1.0, 2.0):
            q = pair(NEARLY_ZERO, share * margin(pair(0.5, 1.0, rewards)), rewards)
            errors.append(violation(answer_a(q) - 2 * NEARLY_ZERO**0.5))
        for ref in REFERENCES[:2]:
            steps = [pair(ref + step, 0.1, rewards) for step in (0.0, 1e-7)]
            errors += [not_eq14(q) for q in steps]
            errors.append(violation(abs(answer_a(steps[1]) - answer_a(steps[0])) - 1e-6))
    yield from each_form(worst(errors))


@claim("VY-eq14-bound")
def the_better_answer_has_at_least() -> Iterator[Found]:
    """pi(a) is at least 1 - beta/gamma, and at least pi_ref(a)."""
    errors = []
    for q in pairs():
        lower = max(1 - q.beta / margin(q), q.reference[0])
        errors += [violation(lower - answer_a(q) - 1e-12), not_eq14(q)]
    far = pair(1e-6, 0.04)
    yield from each_form(worst(errors), beta=far.beta, answer_a_far=answer_a(far))


@claim("VY-eq14-det")
def only_the_order_of_certain_rewards() -> Iterator[Found]:
    """Certain rewards (1, 0), (100, -3) and (0.001, 0) have the margin 1 and the same policy."""
    errors = []
    for ref, beta in itertools.product(REFERENCES, BETAS):
        for rewards in (CERTAIN, (100.0, -3.0), (0.001, 0.0)):
            q = pair(ref, beta, rewards)
            errors += [apart(margin(q), 1.0), apart(answer_a(q), eq14(beta, ref_a(q)))]
    yield from each_form(worst(errors))
