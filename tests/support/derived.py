"""What tests know of a divergence for which nobody typed an oracle: its own generator, evaluated by SymPy.

A divergence is registered by one line and held to one number by hand (`expected_verdicts.F_AT_TWO`). The
oracles have formulas of their own for those that the sources treat. For any other they are completed from f:
sums, gradients, top-k heads and objectives of the package are compared with explicit sums over that f.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch

from kl_companion.divergences import DIVERGENCES, Divergence, T, W, inverse_slope
from tests.oracles import fused, optima, top_k, worlds
from tests.support.expected_verdicts import EXPECTED

BY_HAND = frozenset(worlds.GENERATORS)  # before any is completed
_U = sympy.Symbol("u", real=True)
_MODULES = [{"log": torch.log, "sqrt": torch.sqrt, "exp": torch.exp, "Abs": torch.abs, "abs": torch.abs}]


def on_tensors(f: sympy.Expr, symbol: sympy.Symbol = T) -> Callable[[torch.Tensor], torch.Tensor]:
    """f as a function of a tensor: SymPy's own translation, its constants folded to floats first."""

    def constant(e: sympy.Basic) -> bool:
        return bool(e.is_number) and not e.is_Rational and not e.is_Float

    folded: sympy.Expr = f.replace(constant, lambda e: e.evalf(17))
    compiled: Callable[[torch.Tensor], torch.Tensor] = sympy.lambdify(symbol, folded, modules=_MODULES)
    return compiled


def of_logs(f: sympy.Expr) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Q f(P/Q) from log P and log Q, as P times t f(1/t) at Q/P where P is the larger: nothing overflows."""
    below = on_tensors(f.subs(T, sympy.exp(_U)), _U)
    above = on_tensors(sympy.simplify(T * f.subs(T, 1 / T)).subs(T, sympy.exp(_U)), _U)

    def entry(lp: torch.Tensor, lq: torch.Tensor) -> torch.Tensor:
        u = lp - lq
        larger = lp.exp() * above(-u.clamp(min=0.0))
        return torch.where(u > 0, larger, lq.exp() * below(u.clamp(max=0.0)))

    return entry


def slope_of_floats(d: Divergence) -> Callable[[float], float]:
    """f' as a function of one number, its limit at t = 0 included."""
    floor, inside = float(sympy.limit(d.derivative, T, 0, "+")), sympy.lambdify(T, d.derivative, "math")
    return lambda t: inside(t) if t > 0 else floor


def inverse_or_skip(d: Divergence) -> sympy.Expr:
    """(f')^{-1}; where the package refuses one that is not known by hand, there is nothing to test."""
    try:
        return inverse_slope(d)
    except ValueError as refused:
        if d.name in BY_HAND or "no closed inverse of f' = " not in str(refused):
            raise
        pytest.skip(str(refused))


def complete() -> None:
    """Give every registered divergence without an oracle of its own the one that follows from its f."""
    for name in set(DIVERGENCES) - set(worlds.GENERATORS):
        d = DIVERGENCES[name]
        worlds.GENERATORS[name] = on_tensors(d.as_given.f)
        top_k.NORMALIZED[name] = on_tensors(d.f)
        if d.slope:
            top_k.SLOPE[name] = fused.SLOPE[name] = float(d.slope)
        fused.ENTRY[name] = of_logs(d.f)
        fused.EDGES[name] = (float(d.at_zero), float(d.at_infinity))
        optima.SLOPES[name] = slope_of_floats(d)
        if d.at_infinity.is_finite:
            optima.OUTSIDE[name] = float(d.at_infinity)
        value, weight = W * d.f.subs(T, 1 / W), sympy.diff(d.f, T).subs(T, 1 / W)
        # what it has the gradient of as a penalty in the reward has no name that is known beforehand
        EXPECTED.setdefault(f"kf_plus_plus({name})", (value, weight if d.smooth else None, {name: 1}, ...))
