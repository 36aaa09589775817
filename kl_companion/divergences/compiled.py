"""Expressions of f as functions of tensors: compiled from SymPy, differentiable, accurate near t = 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import mpmath
import sympy
import torch
from sympy.codegen.cfunctions import expm1, log1p

from kl_companion.divergences.registry import Divergence, T, tidy

_U = sympy.Symbol("u", real=True)

_TORCH = {
    **{name: getattr(torch, name) for name in ("exp", "log", "sqrt", "expm1", "log1p")},
    **dict.fromkeys(("abs", "Abs"), torch.abs),
    "where": torch.where,
    "sgn": torch.sign,
    "softplus": lambda x: torch.nn.functional.softplus(x, threshold=40.0),
}


def _nested(*pieces: sympy.Tuple) -> sympy.Expr:
    """A piecewise expression as where(condition, this, otherwise): Python's own `if` refuses tensors."""
    where = sympy.Function("where")
    expr = pieces[-1][0]
    for value, condition in reversed(pieces[:-1]):
        expr = where(condition, value, expr)
    return expr


def torch_function(expr: sympy.Expr, *symbols: sympy.Symbol) -> Callable[..., torch.Tensor]:
    """A tensor function of ``symbols`` that computes ``expr`` elementwise, differentiable by autograd.

    Constants are folded first, because torch functions refuse Python numbers (``torch.log(2)``).
    """

    def is_constant(e: sympy.Basic) -> bool:
        return bool(e.is_number) and not e.is_Rational and not e.is_Float

    folded = sympy.sympify(expr).replace(is_constant, lambda e: e.evalf(17))
    folded = folded.replace(sympy.Piecewise, _nested).replace(sympy.sign, sympy.Function("sgn"))
    compiled = sympy.lambdify(symbols, folded, modules=[_TORCH], cse=True)

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        out = compiled(*tensors)
        return out if isinstance(out, torch.Tensor) else torch.full_like(tensors[0], float(out))

    return function


@cache
def generator_of_log(divergence: Divergence, *, dual: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    """f(e^u) (or its dual) as a function of the tensor u = log t.

    f vanishes to second order at t = 1, where exp(u) would leave the rounding of 1; written with expm1
    and log1p it is as accurate as u itself is known (relative error of a few eps/|u|).
    """
    return function_of_log(divergence.dual if dual else divergence.f)


@cache
def _slopes_of_log(
    divergence: Divergence,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """f'(e^u) as a function of u, for u <= 0; and of -u, through the dual, for u >= 0."""
    return function_of_log(divergence.derivative), function_of_log(_slope_by_inverse(divergence))


def _slope_by_inverse(divergence: Divergence) -> sympy.Expr:
    """f'(t) = f*(1/t) - (1/t) f*'(1/t), as a function of 1/t."""
    return tidy(divergence.dual - T * sympy.diff(divergence.dual, T))


def _moderate(log_t: torch.Tensor) -> bool:
    """Whether f and f' may be taken as they stand: float64, and no power of t near its largest number."""
    if log_t.dtype != torch.float64 or not log_t.numel():
        return False
    if log_t.device.type != "cpu":  # to look would wait for a GPU
        return False
    return bool(max(abs(x) for x in torch.aminmax(log_t.detach())) < 20.0)


def stable_slope(divergence: Divergence, log_t: torch.Tensor) -> torch.Tensor:
    """f'(t), a weight in front of the score, from log t; without overflow where f' is bounded.

    As accurate near t = 1, where f' vanishes, as log t itself.
    """
    below, above = _slopes_of_log(divergence)
    if _moderate(log_t):
        return below(log_t)
    low, high = log_t.clamp(max=0.0), log_t.clamp(min=0.0)
    return torch.where(log_t > 0, above(-high), below(low))


def function_of_log(expr: sympy.Expr) -> Callable[[torch.Tensor], torch.Tensor]:
    """An expression in ``T`` as a function of the tensor u = log t, with expm1 and log1p."""
    if expr.is_rational_function(T):
        expr = sympy.together(expr)  # one numerator, in which the powers of t cancel before they are rounded
    in_log = sympy.expand(sympy.powsimp(sympy.expand(expr.subs(T, sympy.exp(_U)))))
    small = in_log.replace(sympy.exp, lambda a: 1 + expm1(a)).replace(sympy.log, _log_of_small)
    return torch_function(sympy.expand(small), _U)


def stable_generator(divergence: Divergence, log_t: torch.Tensor, *, dual: bool = False) -> torch.Tensor:
    """f(t) (or its dual) where t may overflow: f(t) below t = 1 and t times the dual of 1/t above.

    The same number in either form, but no infinity is subtracted from another; and where infinity would
    meet zero (t log t times 1/t), f(t) is taken after all.
    """
    direct = generator_of_log(divergence, dual=dual)
    if _moderate(log_t):
        return direct(log_t)
    low, high = log_t.clamp(max=0.0), log_t.clamp(min=0.0)
    above = high.exp() * generator_of_log(divergence, dual=not dual)(-high)
    if above.isnan().any():
        above = torch.where(above.isnan(), direct(log_t), above)
    return torch.where(log_t > 0, above, direct(low))


def _log_of_small(argument: sympy.Expr) -> sympy.Expr:
    """log(c + x) as log(c) + log1p(x/c), with c the value at u = 0."""
    at_zero = argument.replace(expm1, lambda a: sympy.S.Zero)
    return sympy.log(at_zero) + log1p(sympy.expand(argument / at_zero - 1))


class LargeRatio(NamedTuple):
    """Value and slope per unit of the larger probability, as functions of minus |log t|."""

    value: Callable[[torch.Tensor], torch.Tensor]
    slope: Callable[[torch.Tensor], torch.Tensor]


@cache
def large_ratio_functions(d: Divergence) -> tuple[LargeRatio, LargeRatio]:
    """Where t < 1, f(t) and t f'(t), which Q multiplies; where t > 1, f(t)/t and f'(t), which P multiplies.

    So written no power of t overflows where the product with the larger probability does not.
    """
    # next to t = 1 the series is taken; where there is none, a form that is accurate there
    made = _plain_function_of_log if near_one(d) else function_of_log
    below = LargeRatio(made(d.f), made(tidy(T * d.derivative)))
    above = LargeRatio(made(d.dual), made(_slope_by_inverse(d)))
    return below, above


def _plain_function_of_log(expr: sympy.Expr) -> Callable[[torch.Tensor], torch.Tensor]:
    """An expression in ``T`` as a function of u = log t, accurate where t is small."""
    in_log = sympy.powsimp(sympy.expand(expr.subs(T, sympy.exp(_U))))
    return torch_function(sympy.expand(in_log), _U)


class Series(NamedTuple):
    """Coefficients in u = log t: f(t)/t = u^2 (value[0] + value[1] u + ...), f'(t) = u (slope[0] + ...)."""

    value: tuple[float, ...]
    slope: tuple[float, ...]


_TERMS = 10
_TRIAL = 0.25  # where the series is tried


@cache
def near_one(d: Divergence) -> Series | None:
    """The power series of f(t)/t and f'(t) at t = 1, or None where f has none (total variation)."""
    with mpmath.workdps(80):
        f, slope = (sympy.lambdify(T, e, modules="mpmath") for e in (d.f, d.derivative))

        def value_of_log(u: mpmath.mpf) -> mpmath.mpf:
            return f(mpmath.exp(u)) * mpmath.exp(-u)

        def slope_of_log(u: mpmath.mpf) -> mpmath.mpf:
            return slope(mpmath.exp(u))

        parts = []
        for function, first in ((value_of_log, 2), (slope_of_log, 1)):
            taylor = mpmath.taylor(function, 0, first + _TERMS - 1)
            for u in (-_TRIAL, _TRIAL):
                exact, found = function(mpmath.mpf(u)), mpmath.polyval(taylor[::-1], u)
                if any(abs(c) > 1e-20 for c in taylor[:first]) or abs(found - exact) > 1e-6 * abs(exact):
                    return None
            parts.append(tuple(float(c) for c in taylor[first:]))
    return Series(*parts)


class Entries(NamedTuple):
    """All that an entry of D_f and its gradient are computed from."""

    below: LargeRatio
    above: LargeRatio
    series: Series | None
    at_zero: float  # f(0), infinite or not
    at_infinity: float  # the limit of f(t)/t


@cache
def entries_of(d: Divergence) -> Entries:
    """`large_ratio_functions`, `near_one` and the edges of a divergence."""
    at_zero, at_infinity = (
        float(edge) if edge.is_finite else float("inf") for edge in (d.at_zero, d.at_infinity)
    )
    return Entries(*large_ratio_functions(d), near_one(d), at_zero, at_infinity)
