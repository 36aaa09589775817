"""Appendix I: rewards under which two regularizers have one optimum (emapg2026)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.best_policies import (
    best_policy,
    case,
    in_training,
    in_words,
    not_best,
    reference,
    regularized,
    settings,
    tensor,
    three_answers,
    vanishing_error,
    with_changed_rewards,
    with_kl,
    z_star_solved,
)
from kl_book.ledger.claims.ground.errors import apart, less, worst
from kl_book.ledger.claims.ground.printed_optima import (
    BETA,
    FORWARD_FROM_REVERSE,
    REVERSE_FROM_FORWARD,
    TABLE_6,
    TILDE,
    Z_STAR,
    R,
    S,
    Z,
)
from kl_companion.divergences import T
from kl_companion.tabular import Problem

REVERSE, FORWARD = (
    sympy.lambdify((R, Z_STAR, BETA, Z), x, "math") for x in (REVERSE_FROM_FORWARD, FORWARD_FROM_REVERSE)
)
GAP = sympy.Symbol("gap", positive=True)  # Z* - R


def to_reverse(problem: Problem, beta: float, z: float) -> tuple[torch.Tensor, Problem]:
    """The optimum under the forward KL, and the prompt with the rewards of eq (134)."""
    z_star = z_star_solved(problem, beta)
    policy = beta * reference(problem) / (z_star - problem.rewards)
    return policy, with_changed_rewards(problem, REVERSE, z_star, beta, z)


def to_forward(problem: Problem, beta: float, z_star: float) -> tuple[torch.Tensor, Problem]:
    """The optimum under the reverse KL, and the prompt with the rewards of eq (135)."""
    tilted = reference(problem) * (problem.rewards / beta).exp()
    z = float(tilted.sum())
    return tilted / tilted.sum(), with_changed_rewards(problem, FORWARD, z_star, beta, z)


@claim("EMA-eq133-134")
def reverse_kl_with_the_forward_optimum() -> Iterator[Found]:
    """Under the reverse KL, -beta log(Z* - R) + beta log(beta Z) has the forward optimum, for every Z."""
    errors = []
    for problem, beta in settings():
        for z in (0.2, 1.0, 7.0):
            policy, changed = to_reverse(problem, beta, z)
            errors += [
                not_best(policy, with_kl("forward", problem, beta)),
                not_best(policy, with_kl("reverse", changed, beta)),
                # Z is then the partition function of the new rewards
                apart((reference(problem) * (changed.rewards / beta).exp()).sum() / z, 1.0),
            ]
    yield from each_form(worst(errors))


@claim("EMA-eq135")
def forward_kl_with_the_reverse_optimum() -> Iterator[Found]:
    """Under the forward KL, Z* - beta Z exp(-R/beta) has the reverse optimum, for every Z*."""
    errors = []
    for problem, beta in settings():
        for z_star in (-3.0, 0.0, 2.0):
            policy, changed = to_forward(problem, beta, z_star)
            unit = float(1 + changed.rewards.abs().max())
            errors += [
                not_best(policy, with_kl("reverse", problem, beta)),
                not_best(policy, with_kl("forward", changed, beta), unit),
                apart(z_star_solved(changed, beta), z_star) / unit,
            ]
    yield from each_form(worst(errors))


def signs(transform: sympy.Expr) -> tuple[float, float]:
    """Signs of the first and second derivative in R, wherever R < Z*; NaN if they are not one sign."""
    found = []
    for order in (1, 2):
        d = sympy.simplify(sympy.diff(transform, R, order).subs(Z_STAR, R + GAP))
        found.append(1.0 if d.is_positive else -1.0 if d.is_negative else math.nan)
    return found[0], found[1]


@claim("EMA-propI.1")
def increasing_and_convex() -> Iterator[Found]:
    """Both derivatives are positive below Z*; not so if Z* is solved again for one changing reward."""
    x = sympy.Symbol("x", real=True)
    # two answers, even reference, beta 1, rewards (x, 0): eq (131) is a quadratic equation
    z_star = (1 + x + sympy.sqrt(1 + x**2)) / 2
    own = -sympy.log(z_star - x)
    halves = sympy.Rational(1, 2) * (1 / (z_star - x) + 1 / z_star)
    at = [float(sympy.diff(own, x, 2).subs(x, k)) for k in (-2, 2)]
    errors = [apart(tensor(list(signs(REVERSE_FROM_FORWARD))), 1.0), vanishing_error(halves - 1)]
    errors += [
        less(0.0, at[0]),
        less(at[1], 0.0),
        vanishing_error(sympy.limit(own, x, sympy.oo) - sympy.log(2)),
    ]
    yield from each_form(worst(errors), at_0=at[0], at_1=at[1])


@claim("EMA-propI.2")
def increasing_and_concave() -> Iterator[Found]:
    """The first derivative is positive, the second negative, for every R."""
    yield from each_form(apart(tensor(list(signs(FORWARD_FROM_REVERSE))), tensor([1.0, -1.0])))


def slopes(before: Problem, after: Problem) -> list[float]:
    """Difference quotients of a transform between neighboring rewards, from low to high."""
    pairs = sorted(zip(before.rewards.tolist(), after.rewards.tolist(), strict=True))
    return [(d - b) / (c - a) for (a, b), (c, d) in itertools.pairwise(pairs)]


@claim("EMA-tabI-F2R")
def forward_to_reverse() -> Iterator[Found]:
    """Same optimum, increasing, convex; the slope at an answer is policy/reference."""
    errors = [apart(tensor(list(signs(REVERSE_FROM_FORWARD))), 1.0)]
    errors.append(vanishing_error(sympy.diff(REVERSE_FROM_FORWARD, R) - BETA / (Z_STAR - R)))
    for problem, beta in settings():
        policy, changed = to_reverse(problem, beta, 1.0)
        steep, tilt = slopes(problem, changed), policy / reference(problem)
        errors += [not_best(policy, with_kl(*x, beta)) for x in (("forward", problem), ("reverse", changed))]
        errors += [less(a, b, by=1e-9) for a, b in itertools.pairwise([0.0, *steep])]
        top, bottom = int(problem.rewards.argmax()), int(problem.rewards.argmin())
        errors += [less(1.0, float(tilt[top]), by=1e-9), less(float(tilt[bottom]), 1.0, by=1e-9)]
    yield from each_form(worst(errors))


@claim("EMA-tabI-R2F")
def reverse_to_forward() -> Iterator[Found]:
    """Same optimum, increasing, concave; the slope at an answer is reference/policy."""
    errors = [apart(tensor(list(signs(FORWARD_FROM_REVERSE))), tensor([1.0, -1.0]))]
    errors.append(vanishing_error(sympy.diff(FORWARD_FROM_REVERSE, R) - Z * sympy.exp(-R / BETA)))
    for problem, beta in settings():
        policy, changed = to_forward(problem, beta, 1.0)
        flat, slope = slopes(problem, changed), reference(problem) / policy
        unit = float(1 + changed.rewards.abs().max())
        errors.append(not_best(policy, with_kl("reverse", problem, beta)))
        errors.append(not_best(policy, with_kl("forward", changed, beta), unit))
        errors += [less(b, a, by=1e-9) for a, b in itertools.pairwise([*flat, 0.0])]
        top, bottom = int(problem.rewards.argmax()), int(problem.rewards.argmin())
        errors += [less(float(slope[top]), 1.0, by=1e-9), less(1.0, float(slope[bottom]), by=1e-9)]
    yield from each_form(worst(errors))


NAMES = (*TABLE_6, "alpha = -3", "alpha = 0", "alpha = 3")


@cache
def slope_of(name: str) -> Callable[[float], float]:
    """f' by differentiating the printed f."""
    return sympy.lambdify(T, sympy.diff(case(name).form.f, T), "math")


@claim("EMA-eq139-140")
def any_two_divergences() -> Iterator[Found]:
    """beta f2'((f1')^{-1}((R - lambda_1)/beta)) + lambda_2 has the first optimum, for every lambda_2."""
    printed, inside = [], []
    for problem, beta in settings()[::4]:
        for one in NAMES:
            found = best_policy(one, problem, beta)
            printed.append(found.excess)
            if found.excess:
                continue
            inside.append(not_best(found.policy, regularized(case(one).f, problem, beta)))
            for other in NAMES:
                tilts = [case(one).inverse((r - found.multiplier) / beta) for r in problem.rewards.tolist()]
                new = [beta * slope_of(other)(t) + 0.7 for t in tilts]
                again = [case(other).inverse((r - 0.7) / beta) for r in new]
                inside.append(apart(tensor(again), tensor(tilts)))  # eq (139)
                changed, unit = problem._replace(rewards=tensor(new)), 1 + max(map(abs, new))
                inside.append(not_best(found.policy, regularized(case(other).f, changed, beta), unit))
    cut = best_policy("Pearson", three_answers(), 1.0).policy.tolist()
    yield from each_form(
        worst([*printed, *inside]), inside=worst(inside), in_words_cut=in_words(cut), practice=in_training()
    )


@cache
def bend_of(name: str) -> Callable[[float], float]:
    """f'' of the printed f."""
    return sympy.lambdify(T, sympy.diff(case(name).form.f, T, 2), "math")


def sign(x: float) -> float:
    """-1 or 1."""
    return math.copysign(1.0, x)


@claim("EMA-eq139-140+curvature")
def curvature_of_the_composition() -> Iterator[Found]:
    """d^2 R_2/dR_1^2 is (f_2' o (f_1')^{-1})''/beta, and has the sign of d(f_2''/f_1'')/dt."""
    composed, lam, errors, mixed = sympy.Function("h"), sympy.Symbol("lambda_1", real=True), [], []
    x = (R - lam) / BETA
    general = sympy.diff(BETA * composed(x) + TILDE, R, 2)
    errors.append(vanishing_error(general - sympy.diff(composed(S), S, 2).subs(S, x).doit() / BETA))
    for one, other in itertools.permutations(TABLE_6, 2):
        first, second, found = bend_of(one), bend_of(other), set()
        for t in (0.05, 0.4, 0.9, 1.2, 3.0, 12.0):
            s = slope_of(one)(t)
            step = 1e-2 * min(1.0, abs(case(one).high - s), abs(s - case(one).low))
            low, middle, high = (slope_of(other)(case(one).inverse(s + k * step)) for k in (-1, 0, 1))
            turn = second(1.001 * t) / first(1.001 * t) - second(0.999 * t) / first(0.999 * t)
            errors.append(float(sign(low - 2 * middle + high) != sign(turn)))
            found.add(sign(turn))
        if len(found) > 1:
            mixed.append(f"{one} to {other}")
    yield from each_form(worst(errors), number=", ".join(mixed))
