"""The slope f' of a divergence and its inverse as functions of log t, exact at both of its ends.

An optimal policy solves f'(t) = (r - multiplier)/beta. Where f' has a least upper bound S = f'(infinity),
what matters is how far below S a slope lies (forward KL: 1/t), and f' - S computed from f' would be
rounded away. So slopes are measured from S wherever it is finite: x = f'(t) - S, else x = f'(t).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import sympy
import torch
from sympy.codegen.cfunctions import expm1, log1p

from kl_companion.divergences import (
    Divergence,
    T,
    function_of_log,
    inverse_slope,
    stable_slope,
    torch_function,
)

Function = Callable[[torch.Tensor], torch.Tensor]
_C = sympy.Symbol("c", positive=True)
_U = sympy.Symbol("u", real=True)
_S = sympy.Symbol("s", real=True)
WIDEST = 745.0  # beyond this log t, t or 1/t is no float64; bisection begins here


class Slope(NamedTuple):
    """f' of a smooth divergence, measured from its upper end.

    Attributes:
        ceiling: S = f'(infinity), infinite for reverse KL and Pearson.
        floor: f'(0+); where it is finite an optimal policy can be clipped to zero.
        of_log: u = log t -> x: f'(t) - S where S is finite, f'(t) else.
        log_of: x -> log t; -inf where x is at or below the floor, +inf where it is at or above 0 = S - S.
        log_stiffness: u -> log(t f''(t)), so that d log t / dx = exp(-log_stiffness).
        closed: Whether ``log_of`` is a closed form; else it is found by bisection, 60 times as slow.
    """

    ceiling: float
    floor: float
    of_log: Function
    log_of: Function
    log_stiffness: Function
    closed: bool

    @property
    def origin(self) -> float:
        """What x is measured from: S, or 0 where S is infinite."""
        return self.ceiling if self.ceiling != float("inf") else 0.0


@cache
def slope_of(divergence: Divergence) -> Slope:
    """The `Slope` of a divergence.

    Raises:
        ValueError: a divergence that is not smooth: its slope has no inverse.
    """
    if not divergence.smooth:
        raise ValueError(
            f"the slope of {divergence.name!r} jumps and has no inverse, expected a smooth divergence"
        )
    low, high = divergence.slope_range
    ceiling = float(high) if high.is_finite else float("inf")
    floor = float(low) if low.is_finite else -float("inf")
    of_log = _below_ceiling(divergence, high) if high.is_finite else function_of_log(divergence.derivative)
    stiffness = sympy.expand_log(
        sympy.log(sympy.factor(T * sympy.diff(divergence.derivative, T))), force=True
    )
    log_stiffness = torch_function(_with_log1p(sympy.expand(stiffness.subs(T, sympy.exp(_U)))), _U)
    clipped = floor - (ceiling if high.is_finite else 0.0)

    def bounded(raw: Function) -> Function:
        def log_of(x: torch.Tensor) -> torch.Tensor:
            over = x >= 0 if high.is_finite else torch.zeros_like(x, dtype=torch.bool)
            under = x <= clipped
            if not (over.any() or under.any()):
                return raw(x)
            safe = x.masked_fill(over | under, of_one)
            return raw(safe).masked_fill(over, torch.inf).masked_fill(under, -torch.inf)

        return log_of

    of_one = float(of_log(torch.zeros(1, dtype=torch.float64)))
    closed = _closed_inverse(divergence, high)
    if closed is not None and _inverts(closed, of_log, clipped):
        return Slope(ceiling, floor, of_log, bounded(closed), log_stiffness, True)
    everywhere = _without_overflow(divergence, of_log, high)
    return Slope(ceiling, floor, everywhere, bounded(_by_bisection(everywhere)), log_stiffness, False)


def _below_ceiling(divergence: Divergence, ceiling: sympy.Expr) -> Function:
    """f'(e^u) - S, written in e^-u so that it is accurate for large u."""
    v = sympy.Symbol("v", positive=True)
    gap = sympy.simplify((divergence.derivative - ceiling).subs(T, 1 / v))
    in_v = sympy.expand_log(sympy.factor(gap), force=True)
    return torch_function(_with_log1p(in_v.subs(v, sympy.exp(-_U))), _U)


def _without_overflow(divergence: Divergence, of_log: Function, ceiling: sympy.Expr) -> Function:
    """The same where a power of t overflows: bisection begins there, and infinity/infinity has no sign."""

    def bounded(u: torch.Tensor) -> torch.Tensor:
        if not ceiling.is_finite:
            return stable_slope(divergence, u)
        below = stable_slope(divergence, u.clamp(max=0.0)) - float(ceiling)
        return torch.where(u > 0, of_log(u.clamp(min=0.0)), below)

    return bounded


def _with_log1p(expr: sympy.Expr) -> sympy.Expr:
    """log(1 + e^y) as softplus(y): nothing is lost where e^y is small, and it may be huge."""

    def shorter(argument: sympy.Expr) -> sympy.Expr:
        rest = sympy.expand(argument) - 1
        return sympy.Function("softplus")(rest.exp) if isinstance(rest, sympy.exp) else sympy.log(argument)

    return expr.replace(sympy.log, shorter)


def _closed_inverse(divergence: Divergence, ceiling: sympy.Expr) -> Function | None:
    """log (f')^{-1} as a tensor function of x, where SymPy finds one that torch can compute."""
    try:
        inverse = inverse_slope(divergence)
    except ValueError:
        return None
    if inverse.has(sympy.LambertW):  # torch has no such function
        return None
    if not ceiling.is_finite:
        compact = sympy.expand_log(sympy.log(sympy.factor(inverse)), force=True)
        return _compiled(compact.replace(sympy.log, _around_zero), _S)
    t = sympy.simplify(inverse.subs(_S, ceiling - _C))
    # what grows like e^(k c) is taken out, so that a slope far below S does not overflow
    z = sympy.Symbol("z", positive=True)  # e^-c
    in_z = t.replace(sympy.exp, lambda a: z ** (-a.coeff(_C)))
    if in_z.has(z):
        k = max(-p.exp for p in in_z.atoms(sympy.Pow) if p.base == z)
        rest = sympy.cancel(in_z / z**k)
        powers = {p for p in rest.atoms(sympy.Pow, sympy.Symbol) if p.as_base_exp()[0] == z}
        rest = rest.xreplace({p: 1 + expm1(-_C * p.as_base_exp()[1]) for p in powers})
    else:
        k, rest = sympy.S.Zero, t
    split = sympy.expand_log(sympy.log(rest), force=True)
    in_c = _compiled((sympy.log(rest) if split.has(sympy.I) else split) - k * _C, _C)
    return None if in_c is None else lambda x: in_c(-x)


def _around_zero(argument: sympy.Expr) -> sympy.Expr:
    """log(c + y) with y = 0 at s = 0, as log c + log1p(y/c)."""
    at_zero = argument.subs(_S, 0)
    if argument.is_number or not at_zero.is_positive:
        return sympy.log(argument)
    return sympy.log(at_zero) + log1p(sympy.expand(argument / at_zero - 1))


def _compiled(expr: sympy.Expr, symbol: sympy.Symbol) -> Function | None:
    known = (sympy.log, sympy.exp, expm1, log1p)
    if any(not isinstance(f, known) for f in expr.atoms(sympy.Function)):
        return None  # LambertW and the like: torch has no such function
    return torch_function(expr, symbol)


def _inverts(log_of: Function, of_log: Function, clipped: float) -> bool:
    """Whether the closed form gives log t back, far out on both sides and where it has to be accurate."""
    u = torch.tensor([-200.0, -30.0, -3.0, -0.5, 0.0, 1e-3, 0.5, 3.0, 30.0, 200.0], dtype=torch.float64)
    x = of_log(u)
    u = u[x - clipped > 1e-6] if clipped > -float("inf") else u  # near the floor the slope no longer tells t
    back = log_of(of_log(u))
    return bool(((back - u).abs() <= 1e-9 * (1 + u.abs())).all())


def _by_bisection(of_log: Function) -> Function:
    """log t from x by halving, for slopes without a closed inverse."""

    def log_of(x: torch.Tensor) -> torch.Tensor:
        low, high = torch.full_like(x, -WIDEST), torch.full_like(x, WIDEST)
        for _ in range(40):  # a slope like log t goes on where t itself is no number any more
            short, long = of_log(high) < x, of_log(low) > x
            if not (short | long).any():
                break
            low, high = torch.where(long, 2 * low, low), torch.where(short, 2 * high, high)
        for _ in range(64):
            middle = (low + high) / 2
            above = of_log(middle) > x
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return (low + high) / 2

    return log_of
