"""Reward transforms: the reward that under one regularizer has the optimum of another reward under another.

The optimum of E[R] - beta D_f has f'(t) = (R - lambda)/beta wherever it keeps mass. The same t is optimal
for D_g and the reward beta g'(t) + lambda_2, so R turns into beta T((R - lambda)/beta) + lambda_2 with
T = g' o (f')^{-1}: increasing, T(0) = 0, and T'(f'(t)) = g''(t)/f''(t). Hence T is convex exactly where
that ratio rises with t, concave where it falls.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Literal, NamedTuple

import sympy
import torch

from kl_companion.divergences import Divergence, T, get_divergence, inverse_slope, tidy
from kl_companion.divergences.forms import LARGEST_POWER, highest_power
from kl_companion.theory.optima import optimal_policy
from kl_companion.theory.slopes import slope_of

R, LAMBDA_1, LAMBDA_2 = sympy.symbols("R lambda_1 lambda_2", real=True)
BETA = sympy.Symbol("beta", positive=True)
Curvature = Literal["convex", "concave", "linear", "mixed"]
_S = sympy.Symbol("s", real=True)
_GAP = sympy.Symbol("gap", positive=True)


class Shape(NamedTuple):
    """What a reward transform does, as symbolic facts.

    Attributes:
        increasing: Whether it keeps the order of rewards; true for every pair.
        curvature: ``"convex"`` (good rewards are pulled apart), ``"concave"`` (bad ones are), ``"linear"``
            or ``"mixed"``.
        ratio: T' as a function of t: f''(t) of the new divergence over that of the old.
        slope: T' at R = lambda_1: the ratio of the curvatures.
        turns_at: The t at which curvature changes sign; empty unless ``"mixed"``.
    """

    increasing: bool
    curvature: Curvature
    ratio: sympy.Expr
    slope: sympy.Expr
    turns_at: tuple[sympy.Expr, ...]


def _pair(source: str | Divergence, to: str | Divergence) -> tuple[Divergence, Divergence]:
    pair = get_divergence(source), get_divergence(to)
    for d in pair:
        if not d.smooth:
            raise ValueError(
                f"{d.name!r} has a slope that jumps: its optimum does not tell rewards apart, expected "
                "smooth divergences"
            )
    return pair


@cache
def _transform(source: Divergence, to: Divergence) -> sympy.Expr:
    """g' o (f')^{-1} in s, simplified on the slopes that f' takes: roots of squares lose their bars."""
    low, high = source.slope_range
    inside = high - _GAP if high.is_finite else low + _GAP if low.is_finite else _S
    composed = to.derivative.subs(T, sympy.simplify(inverse_slope(source).subs(_S, inside)))
    # of small powers SymPy finds the shorter form; of large ones it searches for minutes
    large = highest_power(composed) > LARGEST_POWER
    composed = tidy(composed) if large else sympy.simplify(sympy.expand_log(composed))
    opened = sympy.expand_log(composed, force=True)
    return sympy.simplify(opened.subs(_GAP, sympy.solve(inside - _S, _GAP)[0])) if inside != _S else composed


def reward_transform(source: str | Divergence, to: str | Divergence) -> sympy.Expr:
    """The reward that has the same optimum under ``to`` as ``R`` has under ``source``.

    Args:
        source: Divergence of the reward ``R``; its slope has a closed inverse.
        to: Divergence of the new reward.

    Returns:
        beta g'((f')^{-1}((R - lambda_1)/beta)) + lambda_2 in the symbols ``R``, ``BETA``, ``LAMBDA_1`` and
        ``LAMBDA_2``: lambda_1 is the multiplier of the optimum (see `optimal_policy`; f'(1) = 0), lambda_2
        is free. It holds for tokens that keep mass.

    Raises:
        ValueError: unknown names, a divergence that is not smooth, or a slope without a closed inverse.

    Source: emapg2026, eq (140) and table 7.
    """
    pair = _pair(source, to)
    return BETA * _transform(*pair).subs(_S, (R - LAMBDA_1) / BETA) + LAMBDA_2


@cache
def _shape(source: Divergence, to: Divergence) -> Shape:
    second = sympy.diff(source.derivative, T), sympy.diff(to.derivative, T)
    ratio = sympy.factor(sympy.simplify(second[1] / second[0]))
    bend = sympy.factor(sympy.simplify(sympy.diff(ratio, T)))
    turns = _positive_roots(bend) if bend != 0 else ()
    signs = [sympy.sign(bend.subs(T, p)) for p in _between(turns)]
    turns = tuple(z for z, (a, b) in zip(turns, itertools.pairwise(signs), strict=True) if a != b)
    bent: Curvature = "mixed" if turns else "convex" if signs[0] > 0 else "concave"
    rises = all(ratio.subs(T, p) > 0 for p in _between(_positive_roots(ratio)))
    return Shape(rises, "linear" if bend == 0 else bent, ratio, sympy.nsimplify(ratio.subs(T, 1)), turns)


def _positive_roots(expr: sympy.Expr) -> tuple[sympy.Expr, ...]:
    """Where an expression in t vanishes, in ascending order; exact, also where no formula writes a root."""
    numerator = sympy.fraction(sympy.together(expr))[0]
    powers = [p.exp for p in numerator.atoms(sympy.Pow) if p.base == T and p.exp.is_Rational]
    n = math.lcm(*(e.q for e in powers))
    z = sympy.Symbol("z", positive=True)  # t^(1/n)
    in_z = sympy.expand(numerator.subs(T, z**n))
    if in_z.is_polynomial(z):  # of the roots that `solve` writes with radicals SymPy cannot tell the sign
        roots = {root**n for root in sympy.real_roots(in_z, z) if root.is_positive} if in_z.has(z) else set()
    else:
        roots = {root for root in sympy.solve(expr, T) if root.is_positive}
    return tuple(sorted(roots, key=float))


def _between(points: tuple[sympy.Expr, ...]) -> list[sympy.Expr]:
    """One number of each interval into which ``points``, in ascending order, cut the positive axis."""
    if not points:
        return [sympy.S.One]
    inner = [(a + b) / 2 for a, b in itertools.pairwise(points)]
    return [points[0] / 2, *inner, 2 * points[-1]]


def transform_shape(source: str | Divergence, to: str | Divergence) -> Shape:
    """Monotonicity and curvature of `reward_transform`, for a fixed multiplier; arguments as there.

    Raises:
        ValueError: unknown names, or a divergence that is not smooth.

    Source: emapg2026, propositions I.1 and I.2, for every pair.
    """
    return _shape(*_pair(source, to))


def transformed_rewards(
    rewards: torch.Tensor,
    ref_logp: torch.Tensor,
    source: str | Divergence,
    to: str | Divergence,
    beta: float | torch.Tensor = 1.0,
) -> torch.Tensor:
    """Rewards whose optimum under ``to`` is that of ``rewards`` under ``source``, [..., vocab] float64.

    lambda_2 is chosen equal to lambda_1, so that ``to = source`` changes nothing. A token that ``source``
    clips to zero keeps its distance below the last reward that is not clipped.

    Args:
        rewards: [..., vocab].
        ref_logp: Normalized log-probs of the reference, [..., vocab]; where it has no mass, the reward is
            kept.
        source: Divergence of ``rewards``, smooth.
        to: Divergence of the new rewards, smooth.
        beta: Coefficient of both, a number or [...].

    Raises:
        ValueError: as `optimal_policy`, or ``source`` clips a token to zero and ``to`` never does: no finite
            reward does that.
    """
    pair = _pair(source, to)
    old, new = (slope_of(d) for d in pair)
    found = optimal_policy(rewards, ref_logp, pair[0], beta)
    scale = torch.as_tensor(beta, dtype=torch.float64).unsqueeze(-1)
    level = found.multiplier.unsqueeze(-1)
    r = rewards.double().expand(found.logp.shape)
    support = ref_logp.double().expand(r.shape) > -torch.inf
    clipped = support & found.logp.isneginf() & ((r - level) / scale <= old.floor)
    if clipped.any() and new.floor == -float("inf"):
        at = clipped.nonzero()[0].tolist()
        raise ValueError(
            f"{pair[0].name!r} takes all mass from token {at}, expected an optimum without zeros: under "
            f"{pair[1].name!r} no finite reward does that (a larger beta keeps every token)"
        )
    # measured from the upper end of both slopes, where rounding would be felt
    x = (r - level) / scale - old.origin
    moved = scale * (new.of_log(old.log_of(x)) + new.origin) + level
    if clipped.any():
        depth = r - (level + scale * old.floor)
        moved = torch.where(clipped, level + scale * new.floor + depth, moved)
    return torch.where(support, moved, r)
