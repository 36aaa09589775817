"""Section 2.3.1: questions with two answers, in large groups (vojnovic2025alignment)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import sympy

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
from kl_book.ledger.claims.ledger import Evidence, claim

NOISE = (
    r"the question has deterministic rewards: $\sigma(\pi)$ is then $(r(a) - r(b))\sqrt{\pi(a)\pi(b)}$, and "
    r"the "
    "difference of the rewards cancels"
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


CORRECTION = (
    r"$\pi(a) = \frac12\left[1 - b + \sqrt{(1-b)^2 + 4 b\,\pref(a)}\right]$ with $b = "
    r"\beta\,\sigma(\pi)/(r(a) "
    r"- r(b))$, where $\sigma^2 = (r(a) - r(b))^2 \pi(a)\pi(b) + \pi(a) v_a + \pi(b) v_b$ and $v_a$, $v_b$ "
    r"are "
    "the variances of the reward of each answer. It is (14) with a signal-to-noise ratio for the margin, and "
    "(15) if both variances are 0."
)


def _example() -> tuple[Question, Question]:
    """The same question with large groups and with groups of 16."""
    q = pair(0.3, 0.5, CHECKED, None)
    return q, q._replace(size=16)


@claim("VY-eq15")
def the_policy_for_large_groups() -> Evidence:
    """(15) is the stationary policy for certain rewards; random ones, which 2.1 admits, have more noise."""
    q, finite = _example()
    small = pair(0.3, 0.04, CHECKED, None)
    return Evidence(
        worst([not_eq15(x) for x in large()]),
        worst([_not_of_the_noise(x) for x in large()]),
        unit="difference",
        inside=worst([not_eq15(x) for x in _certain()]),
        condition=NOISE,
        correction=CORRECTION,
        counterexample=(
            f"rewards 0 and 1, a is right {0.9:.0%} of the time and b {0.1:.0%}, $\\pref(a)$ = "
            f"{q.reference[0]}, $\\beta$ = {q.beta}: (15) gives {eq15(q.beta, q.reference[0]):.3f}, the "
            f"stationary policy is {answer_a(q):.3f}, and {answer_a(finite):.3f} in groups of {finite.size}"
        ),
        practice=(
            f"With a grader that is right {0.9:.0%} of the time and $\\beta$ = {small.beta} the worse answer "
            f"keeps {1 - answer_a(small):.1%}, (15) says {1 - eq15(small.beta, small.reference[0]):.2%}."
        ),
    )


@claim("VY-eq15-tie")
def equal_expected_rewards_leave_the_reference() -> Evidence:
    """Also for random rewards with the same mean, and for equal certain ones in finite groups."""
    even = ((0.0, 1.0), (0.5, 0.5))
    other = ((0.2, 0.7), (0.4, 0.6))
    errors = []
    for ref, beta in itertools.product(REFERENCES, (0.1, 1.0)):
        for q in (pair(ref, beta, (even, other), None), pair(ref, beta, (1.0, 1.0), 8)):
            errors.append(apart(answer_a(q), ref_a(q)))
    return Evidence(worst(errors))


@claim("VY-eq15-solely")
def noise_enters_the_policy() -> Evidence:
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
    return Evidence(
        worst(spread),
        worst([*(_not_of_the_noise(x) for x in large()), *certain]),
        unit="difference",
        inside=worst(certain),
        condition=NOISE,
        correction=(
            r"The aggregate depends on $\pref$, $\beta$ and the noise of the rewards relative to the "
            r"difference of their means, $\sigma(\pi)/(r(a) - r(b))$: " + CORRECTION
        ),
        counterexample=(
            f"$\\pref(a)$ = {q.reference[0]}, $\\beta$ = {q.beta}: rewards of 1 and 0 give "
            f"{answer_a(pair(0.3, 0.5, CERTAIN, None)):.3f}, rewards that are 1 in {0.9:.0%} and {0.1:.0%} "
            f"of "
            f"the cases {answer_a(q):.3f}"
        ),
        practice=(
            "A grader with errors weakens the reward relative to the penalty, as a larger coefficient would: "
            f"at {0.9:.0%} right against {0.1:.0%} the policy is that of deterministic rewards at $\\beta$ = "
            f"{_same_beta(q):.2f} instead of {q.beta}."
        ),
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
def large_groups_against_groups_of_two() -> Evidence:
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
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="difference",
        inside=worst(inside),
        condition="the rewards are deterministic, or 0 and 1",
        correction=(
            r"Large groups are more biased to the reward exactly where $(r(a) - r(b))/\sigma(\pi) > \gamma$ "
            r"at "
            "their policy: always for deterministic rewards and for rewards of 0 and 1, not where rare "
            "large rewards "
            "make the deviation."
        ),
        counterexample=(
            f"a has the reward 1, and {LARGE:.0f} in {RARELY:.0%} of the cases; b has 0; $\\pref(a)$ = 0.3, "
            f"$\\beta$ = 0.5: {answer_a(two):.2f} in groups of two, {answer_a(many):.2f} in large groups"
        ),
        practice=(
            "With rewards of 0 and 1, deterministic or not, the ratio of signal to noise is at least "
            f"{factor:.0f} times the margin, and large groups are always nearer to the reward."
        ),
    )


def _saturated(x: float) -> float:
    """x / (1 + |x|)."""
    return x / (1 + abs(x))


@claim("VY-eq15-discontinuous")
def the_jump_for_large_groups() -> Evidence:
    """For certain rewards pi(a) goes to 1/(1 + beta^2) as pi_ref(a) goes to 0."""
    errors = [not_eq15(q) for q in _certain()]
    for beta in (0.1, 1.0, 3.0):
        q = pair(NEARLY_ZERO, beta, CERTAIN, None)
        limit = 1 / (1 + beta**2)
        errors += [violation(abs(answer_a(q) - limit) - 100 * NEARLY_ZERO), differs(answer_a(q), 0.0)]
    noisy = pair(NEARLY_ZERO, 3.0, CHECKED, None)
    return Evidence(
        worst(errors),
        note=(
            "For deterministic rewards, to which (15) applies. With rewards of 1 in 90% and 10% of the "
            "cases and "
            f"$\\beta$ = 3 there is no jump: $\\pi(a)$ is {answer_a(noisy):.0e} at $\\pref(a)$ = "
            f"{NEARLY_ZERO:.0e}."
        ),
    )


@claim("VY-eq15-bound")
def the_better_answer_has_at_least_in_large_groups() -> Evidence:
    """For certain rewards pi(a) is at least 1/(1 + beta^2), and at least pi_ref(a)."""
    errors = []
    for q in _certain():
        lower = max(1 / (1 + q.beta**2), q.reference[0])
        errors += [violation(lower - answer_a(q) - 1e-12), not_eq15(q)]
    noisy = pair(0.02, 0.5, CHECKED, None)
    return Evidence(
        worst(errors),
        note=(
            "For deterministic rewards, to which (15) applies. With rewards of 1 in 90% and 10% of the "
            "cases, "
            f"$\\beta$ = 0.5 and $\\pref(a)$ = 0.02 $\\pi(a)$ is {answer_a(noisy):.2f}; the bound is "
            f"{1 / (1 + noisy.beta**2):.2f}."
        ),
    )


@claim("VY-eq15-compare", how="symbols")
def the_bound_of_large_groups_is_larger() -> Evidence:
    """1 - (1 - beta)(1 + beta^2) is beta (1 - beta + beta^2), whose second factor has no real root."""
    b = sympy.Symbol("b", real=True)
    rest = sympy.cancel((1 - (1 - b) * (1 + b**2)) / b)
    roots, at_one = sympy.real_roots(rest), float(rest.subs(b, 1))
    return Evidence(worst([float(len(roots)), violation(-at_one)]))


@claim("VY-2.3.1-symbol")
def the_probability_of_an_answer() -> Evidence:
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
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="VY-eq15-bound",
        unit="difference",
        correction=r"$\pi_\theta(a|q) \ge 1/(1+\beta^2)$, with the answer a",
        counterexample=(
            "the question q is not among its own answers a and b: its probability is 0, and the bound is "
            f"{1 / (1 + 0.1**2):.2f} at $\\beta$ = 0.1"
        ),
        practice=(
            f"None: the bound of {1 / (1 + 0.1**2):.2f} is meant for the better answer, and holds for it."
        ),
    )
