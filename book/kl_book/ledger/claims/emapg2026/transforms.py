"""Appendix I: rewards under which two regularizers have one optimum (emapg2026)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import sympy
import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, inside, less, printed, rises, same
from kl_book.ledger.claims.ground import best_policies as best
from kl_book.ledger.claims.ground.best_policies import Setting, not_best, reference, settings, with_kl
from kl_book.ledger.claims.ground.printed_forms import (
    BETA,
    FORWARD_FROM_REVERSE,
    REVERSE_FROM_FORWARD,
    TABLES,
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
    z_star = best.z_star_solved(problem, beta)
    policy = beta * reference(problem) / (z_star - problem.rewards)
    return policy, best.with_changed_rewards(problem, REVERSE, z_star, beta, z)


def to_forward(problem: Problem, beta: float, z_star: float) -> tuple[torch.Tensor, Problem, float]:
    """The optimum under the reverse KL, the prompt with the rewards of eq (135), and their unit."""
    tilted = reference(problem) * (problem.rewards / beta).exp()
    z = float(tilted.sum())
    changed = best.with_changed_rewards(problem, FORWARD, z_star, beta, z)
    return tilted / tilted.sum(), changed, float(1 + changed.rewards.abs().max())


@claim("EMA-eq133-134", over=settings)
def reverse_kl_with_the_forward_optimum(x: Setting) -> Iterator[Found]:
    """Under the reverse KL, -beta log(Z* - R) + beta log(beta Z) has the forward optimum, for every Z."""
    problem, beta = x
    for z in (0.2, 1.0, 7.0):
        policy, changed = to_reverse(problem, beta, z)
        yield printed(not_best(policy, with_kl("forward", problem, beta)))
        yield printed(not_best(policy, with_kl("reverse", changed, beta)))
        # Z is then the partition function of the new rewards
        yield same((reference(problem) * (changed.rewards / beta).exp()).sum() / z, 1.0)


@claim("EMA-eq135", over=settings)
def forward_kl_with_the_reverse_optimum(x: Setting) -> Iterator[Found]:
    """Under the forward KL, Z* - beta Z exp(-R/beta) has the reverse optimum, for every Z*."""
    problem, beta = x
    for z_star in (-3.0, 0.0, 2.0):
        policy, changed, unit = to_forward(problem, beta, z_star)
        yield printed(not_best(policy, with_kl("reverse", problem, beta)))
        yield printed(not_best(policy, with_kl("forward", changed, beta), unit))
        yield same(best.z_star_solved(changed, beta) / unit, z_star / unit)


def signs(transform: sympy.Expr) -> torch.Tensor:
    """Signs of the first and second derivative in R, wherever R < Z*; NaN if they are not one sign."""
    of_both = []
    for order in (1, 2):
        d = sympy.simplify(sympy.diff(transform, R, order).subs(Z_STAR, R + GAP))
        of_both.append(1.0 if d.is_positive else -1.0 if d.is_negative else math.nan)
    return best.tensor(of_both)


# two answers, even reference, beta 1, rewards (x, 0): eq (131) is a quadratic equation
X = sympy.Symbol("x", real=True)
SOLVED = (1 + X + sympy.sqrt(1 + X**2)) / 2
OF_ONE_REWARD = -sympy.log(SOLVED - X)


def bend(at: float) -> float:
    """Second derivative of the transform in one of two rewards, Z* solved again."""
    return float(sympy.diff(OF_ONE_REWARD, X, 2).subs(X, at))


@claim("EMA-propI.1")
def increasing_and_convex() -> Iterator[Found]:
    """Both derivatives are positive below Z*; not so if Z* is solved again for one changing reward."""
    yield same(signs(REVERSE_FROM_FORWARD), 1.0)
    halves = sympy.Rational(1, 2) * (1 / (SOLVED - X) + 1 / SOLVED)
    yield printed(best.vanishing_error(halves - 1))
    yield less(0.0, bend(-2))
    yield less(bend(2), 0.0)
    yield printed(best.vanishing_error(sympy.limit(OF_ONE_REWARD, X, sympy.oo) - sympy.log(2)))


@words("EMA-propI.1")
def bends() -> dict[str, Any]:
    """On both sides of the other reward."""
    return {"below": bend(-2), "above": bend(2)}


@claim("EMA-propI.2")
def increasing_and_concave() -> Iterator[Found]:
    """The first derivative is positive, the second negative, for every R."""
    yield same(signs(FORWARD_FROM_REVERSE), best.tensor([1.0, -1.0]))


def slopes(before: Problem, after: Problem) -> list[float]:
    """Difference quotients of a transform between neighboring rewards, from low to high."""
    pairs = sorted(zip(before.rewards.tolist(), after.rewards.tolist(), strict=True))
    return [(d - b) / (c - a) for (a, b), (c, d) in itertools.pairwise(pairs)]


@claim("EMA-tabI-F2R")
def forward_to_reverse() -> Iterator[Found]:
    """Same optimum, increasing, convex; the slope at an answer is policy/reference."""
    yield same(signs(REVERSE_FROM_FORWARD), 1.0)
    yield printed(best.vanishing_error(sympy.diff(REVERSE_FROM_FORWARD, R) - BETA / (Z_STAR - R)))
    for problem, beta in settings():
        policy, changed = to_reverse(problem, beta, 1.0)
        yield printed(not_best(policy, with_kl("forward", problem, beta)))
        yield printed(not_best(policy, with_kl("reverse", changed, beta)))
        yield rises([0.0, *slopes(problem, changed)], by=1e-9)
        low, *_, high = (policy / reference(problem))[problem.rewards.argsort()].tolist()
        yield rises([low, 1.0, high], by=1e-9)


@claim("EMA-tabI-R2F")
def reverse_to_forward() -> Iterator[Found]:
    """Same optimum, increasing, concave; the slope at an answer is reference/policy."""
    yield same(signs(FORWARD_FROM_REVERSE), best.tensor([1.0, -1.0]))
    yield printed(best.vanishing_error(sympy.diff(FORWARD_FROM_REVERSE, R) - Z * sympy.exp(-R / BETA)))
    for problem, beta in settings():
        policy, changed, unit = to_forward(problem, beta, 1.0)
        yield printed(not_best(policy, with_kl("reverse", problem, beta)))
        yield printed(not_best(policy, with_kl("forward", changed, beta), unit))
        yield rises([*slopes(problem, changed), 0.0][::-1], by=1e-9)
        low, *_, high = (reference(problem) / policy)[problem.rewards.argsort()].tolist()
        yield rises([high, 1.0, low], by=1e-9)


NAMES = (*TABLES[6], "alpha = -3", "alpha = 0", "alpha = 3")


@cache
def slope_of(name: str, order: int = 1) -> Callable[[float], float]:
    """f' or a later derivative, by differentiating the printed f."""
    return sympy.lambdify(T, sympy.diff(best.case(name).form.f, T, order), "math")


@claim("EMA-eq139-140")
def any_two_divergences() -> Iterator[Found]:
    """beta f2'((f1')^{-1}((R - lambda_1)/beta)) + lambda_2 has the first optimum, for every lambda_2."""
    for (problem, beta), one in itertools.product(settings()[::4], NAMES):
        optimal, r = best.best_policy(one, problem, beta), problem.rewards.tolist()
        yield printed(optimal.excess)
        if optimal.excess:
            continue
        yield inside(not_best(optimal.policy, best.regularized(best.case(one).f, problem, beta)))
        tilts = [best.case(one).inverse((reward - optimal.multiplier) / beta) for reward in r]
        for other in NAMES:
            new = [beta * slope_of(other)(t) + 0.7 for t in tilts]
            again = [best.case(other).inverse((reward - 0.7) / beta) for reward in new]
            yield same(best.tensor(again), best.tensor(tilts), "inside")  # eq (139)
            changed, unit = problem._replace(rewards=best.tensor(new)), 1 + max(map(abs, new))
            objective = best.regularized(best.case(other).f, changed, beta)
            yield inside(not_best(optimal.policy, objective, unit))


def sign(x: float) -> float:
    """-1 or 1."""
    return math.copysign(1.0, x)


def turn(one: str, other: str, t: float) -> float:
    """Sign of the slope of f_2''/f_1'' at t."""
    first, second = slope_of(one, 2), slope_of(other, 2)
    return sign(second(1.001 * t) / first(1.001 * t) - second(0.999 * t) / first(0.999 * t))


POINTS = (0.05, 0.4, 0.9, 1.2, 3.0, 12.0)


@claim("EMA-eq139-140+curvature")
def curvature_of_the_composition() -> Iterator[Found]:
    """d^2 R_2/dR_1^2 is (f_2' o (f_1')^{-1})''/beta, and has the sign of d(f_2''/f_1'')/dt."""
    composed, x = sympy.Function("h"), (R - sympy.Symbol("lambda_1", real=True)) / BETA
    general = sympy.diff(BETA * composed(x) + TILDE, R, 2)
    curved = sympy.diff(composed(S), S, 2).subs(S, x).doit() / BETA
    yield printed(best.vanishing_error(general - curved))
    for (one, other), t in itertools.product(itertools.permutations(TABLES[6], 2), POINTS):
        c, s = best.case(one), slope_of(one)(t)
        step = 1e-2 * min(1.0, abs(c.high - s), abs(s - c.low))
        low, middle, high = (slope_of(other)(c.inverse(s + k * step)) for k in (-1, 0, 1))
        yield same(sign(low - 2 * middle + high), turn(one, other, t))


@words("EMA-eq139-140+curvature")
def pairs_of_both_signs() -> dict[str, Any]:
    """Pairs of table 6 of which the curvature changes its sign."""
    pairs = itertools.permutations(TABLES[6], 2)
    mixed = [x for x in pairs if len({turn(*x, t) for t in POINTS}) > 1]
    return {"pairs": [f"{one} to {other}" for one, other in mixed]}
