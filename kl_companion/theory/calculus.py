"""From an estimator to the objective whose gradient it has, in symbols.

One step, one sample y ~ pi, s = grad log pi(y), w = pi_ref(y)/pi(y), t = 1/w. If the gradient of a
sample is h(w) s, the expected gradient is E_pi[h(w) s]. Constants in h vanish because E_pi[s] = 0.
Every such h is the gradient of exactly one f-divergence with f(1) = f'(1) = 0:

    grad sum_y pi_ref f(pi / pi_ref) = E_pi[f'(t) s],   so   f'(t) = h(1/t) - h(1),

and "which objective is this loss?" is an integral, not a look-up. (The identity of the gradient is
emapg2026, eqs (109)-(114).)

``placement`` says how the estimate is used:

* ``"loss"``: back-propagated as it stands; the path-wise part of the gradient.
* ``"reward"``: detached and subtracted from the reward; the score-function part.
* ``"full"``: both, the gradient of the expected value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from itertools import combinations
from typing import Any, Literal

import mpmath
import sympy
from sympy.integrals.manualintegrate import manualintegrate

from kl_companion.checks import check_choice
from kl_companion.divergences import DIVERGENCES, T, W, tidy
from kl_companion.estimators.registry import Estimator, sampled_estimator
from kl_companion.ops import StopGradient

# a gradient has two parts: of the estimate itself, and of the probability of the sample
GradientPart = Literal["loss", "reward", "full"]
GRADIENT_PARTS: tuple[GradientPart, ...] = ("loss", "reward", "full")
LOGP, REF_LOGP = sympy.symbols("ell ell_ref", real=True)
_X = sympy.Symbol("x", real=True)  # log w

EstimatorLike = str | Estimator | Callable[[Any, Any], Any]


def trace(estimator: EstimatorLike) -> sympy.Expr:
    """The estimator applied to symbols: an expression in ``LOGP`` and ``REF_LOGP``.

    Raises:
        ValueError: an unknown name, an estimator that reads whole distributions, or a function that takes
            tensors only.
    """
    entry = sampled_estimator(estimator, "a derivation")
    try:
        return sympy.sympify(entry.fn(LOGP, REF_LOGP))
    except TypeError as error:  # torch functions raise it for a symbol
        raise ValueError(
            f"{entry.name} does not take the symbols ({error}), expected one that is written with "
            "kl_companion.ops"
        ) from error


def in_ratio(expr: sympy.Expr) -> sympy.Expr:
    """Rewrite an expression in the two log-probs as one in w, with stop-gradients removed."""
    opened = expr.replace(StopGradient, lambda x: x).subs(REF_LOGP, LOGP + _X)
    opened = sympy.expand(sympy.powsimp(sympy.expand(opened)))
    if opened.has(LOGP):
        opened = sympy.simplify(opened)
    if opened.has(LOGP):
        raise ValueError(
            f"the expression {opened} depends on log pi itself, expected a function of the ratio w alone: "
            "no f-divergence has such a gradient"
        )
    return tidy(opened.subs(_X, sympy.log(W)))


def value(estimator: EstimatorLike) -> sympy.Expr:
    """The value of one sample as a function of w."""
    return in_ratio(trace(estimator))


def gradient_weight(estimator: EstimatorLike, placement: GradientPart = "loss") -> sympy.Expr:
    """h(w): the factor in front of the score in the gradient of one sample.

    Raises:
        ValueError: unknown placement, or the weight depends on more than the ratio.

    Source: tang2025pitfalls, appendix B (the two parts).
    """
    check_choice("placement", placement, GRADIENT_PARTS)
    expr = trace(estimator)
    if placement == "reward":
        return in_ratio(expr)
    path = in_ratio(sympy.diff(expr, LOGP))
    return path if placement == "loss" else tidy(path + in_ratio(expr))


def _check_symbol(name: str, expr: sympy.Expr, symbol: sympy.Symbol) -> None:
    """Raise ValueError for a text, or an expression in another symbol: a symbol of that name is another."""
    if isinstance(expr, str):
        raise ValueError(f"{name} is the text {expr!r}, expected an expression in {symbol}")
    others = sympy.sympify(expr).free_symbols - {symbol}
    if others:
        said = ", ".join(sorted(map(str, others)))
        wanted = f"{symbol} ({str(symbol).upper()})"
        if any(x.name == symbol.name for x in others):
            wanted = f"{symbol} (kl_companion.divergences.{str(symbol).upper()}, which is positive)"
        raise ValueError(f"{name} {expr} has the symbols {{{said}}}, expected only {wanted}")


def implied_slope(weight: sympy.Expr) -> sympy.Expr:
    """f'(t) = h(1/t) - h(1): the slope of the divergence that the weight h descends.

    Raises:
        ValueError: the weight has symbols other than ``W``.
    """
    _check_symbol("the weight", weight, W)
    weight = sympy.sympify(weight)
    if weight.has(sympy.sign, sympy.Abs):
        return (weight - weight.subs(W, 1)).subs(W, 1 / T)
    return sympy.expand_log(sympy.simplify((weight - weight.subs(W, 1)).subs(W, 1 / T)))


@cache
def implied_f(weight: sympy.Expr) -> sympy.Expr:
    """The only generator with f(1) = f'(1) = 0 whose divergence has the gradient E_pi[h(w) s].

    Args:
        weight: h as an expression in ``W`` (see `gradient_weight`).

    Returns:
        An expression in ``T``. A slope that is a short sum of registered slopes gives the sum of
        their generators; any other is integrated.

    Raises:
        ValueError: the weight has symbols other than ``W``.
    """
    slope = implied_slope(weight)
    known = match_slope(slope)
    if known is not None:
        return sum((c * DIVERGENCES[n].f for n, c in known.items()), sympy.S.Zero)
    if not slope.has(sympy.sign, sympy.Abs):
        return _integral(slope)
    below, above = (_integral(_on_side(slope, p)) for p in (sympy.S.Half, sympy.S.Exp1))
    return sympy.Piecewise((below, T <= 1), (above, True))


def _on_side(slope: sympy.Expr, point: sympy.Expr) -> sympy.Expr:
    """The slope on one side of its kink at t = 1: |x| and sign(x) with the sign they have at a point."""

    def sign(x: sympy.Expr) -> sympy.Integer:
        return sympy.sign(x.subs(T, point))

    return slope.replace(sympy.Abs, lambda x: sign(x) * x).replace(sympy.sign, sign)


def _integral(slope: sympy.Expr) -> sympy.Expr:
    """The integral of a slope from 1 to t."""
    u = sympy.Symbol("u", positive=True)
    # rule-based integration is fast, and leaves integrals that it cannot do; `integrate` can take minutes
    primitive = manualintegrate(sympy.expand(slope.subs(T, u)), u)
    dilogarithm = sympy.Integral(sympy.log(u + 1) / u, u)
    primitive = primitive.subs(dilogarithm, -sympy.polylog(2, -u))
    return sympy.expand(sympy.simplify(primitive.subs(u, T) - primitive.subs(u, 1)))


_POINTS = tuple(map(mpmath.mpf, ["0.059", "0.27", "0.71", "1.3", "2.25", "6.2", "23"]))  # on both sides of 1
_DIGITS = 50
_ZERO = mpmath.mpf(10) ** -35


@lru_cache(maxsize=4096)
def _at_points(expr: sympy.Expr) -> tuple[mpmath.mpf, ...]:
    """The expression at seven points of its one symbol, to fifty digits."""
    symbol = next(iter(expr.free_symbols), T)
    with mpmath.workdps(_DIGITS):
        function = sympy.lambdify(symbol, expr, modules="mpmath")
        return tuple(mpmath.mpf(function(p)) for p in _POINTS)


def vanishes(expr: sympy.Expr) -> bool:
    """Whether an expression in one symbol is identically zero: to 35 digits at seven points.

    Expressions here are sums of powers and logarithms, which cannot vanish at all of them by chance;
    ``simplify`` alone would miss zeros that it returns in another form.
    """
    return all(abs(x) < _ZERO for x in _at_points(sympy.sympify(expr)))


def same_weight(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether two gradient weights differ by a constant only, hence agree in expectation.

    On a masked set (a top-k tail) constants do not vanish: this is equality over the whole vocabulary.

    Raises:
        ValueError: a weight has symbols other than ``W``.
    """
    for weight in (a, b):
        _check_symbol("the weight", weight, W)
    difference = sympy.sympify(a) - sympy.sympify(b)
    return vanishes(difference - difference.subs(W, 2))


def match_slope(slope: sympy.Expr, *, max_terms: int = 2) -> dict[str, sympy.Expr] | None:
    """Write a slope f'(t) as a short sum of registered slopes; see `match_divergence`."""
    slope = sympy.nsimplify(slope, rational=True)  # 0.3 is meant as 3/10, not as a binary fraction
    slope = slope - slope.subs(T, 1)
    if vanishes(slope):
        return {}
    for terms in range(1, max_terms + 1):
        for chosen in combinations(DIVERGENCES, terms):
            found = _solve(slope, chosen)
            if found is not None:
                return dict(zip(chosen, found, strict=True))
    return None


def match_divergence(f: sympy.Expr, *, max_terms: int = 2) -> dict[str, sympy.Expr] | None:
    """Write f as a short sum of registered generators.

    Args:
        f: Expression in ``T``; c (t - 1) is ignored.
        max_terms: The longest sum to try.

    Returns:
        ``{name: coefficient}``: empty for zero, the first shortest match, None when there is none.

    Raises:
        ValueError: f has symbols other than ``T``, or ``max_terms`` is below 1.
    """
    _check_symbol("f", f, T)
    if max_terms < 1:
        raise ValueError(f"max_terms is {max_terms}, expected at least 1")
    return match_slope(sympy.diff(sympy.sympify(f), T), max_terms=max_terms)


def _solve(slope: sympy.Expr, names: tuple[str, ...]) -> list[sympy.Rational] | None:
    """Coefficients with slope = sum c_i f_i', as rationals, or None."""
    columns = [_at_points(DIVERGENCES[n].derivative) for n in names]
    target = _at_points(slope)
    with mpmath.workdps(_DIGITS):
        # the first and the last points: on either side of t = 1, where the kink of |t - 1| is
        rows = [0, -1][: len(names)] if len(names) < 3 else list(range(len(names)))
        matrix = mpmath.matrix([[c[r] for c in columns] for r in rows])
        if abs(mpmath.det(matrix)) < _ZERO:
            return None
        raw = mpmath.lu_solve(matrix, mpmath.matrix([target[r] for r in rows]))
        for i, t in enumerate(target):
            if abs(sum(c[i] * x for c, x in zip(columns, raw, strict=True)) - t) > _ZERO:
                return None
        found = [sympy.nsimplify(sympy.Float(str(x), 40), rational=True, tolerance=1e-30) for x in raw]
    return None if any(c == 0 or c.q > 10**6 for c in found) else found


def value_is_unbiased(estimator: EstimatorLike, divergence: str) -> bool:
    """Whether E_pi[value] is that divergence: compares w v(w) with its generator up to c (w - 1)."""
    v = value(estimator).subs(W, 1 / T)
    difference = T * v - DIVERGENCES[divergence].f
    at_one, at_two = difference.subs(T, 1), difference.subs(T, 2)
    # E_pi[v] = sum_y pi_ref t v(1/t); t - 1 sums to zero, and nothing else that is the same for all pairs
    return vanishes(at_one) and vanishes(difference - at_two * (T - 1))
