"""What tests know of a divergence for which nobody typed an oracle: its own generator, evaluated by SymPy.

A divergence is registered by one line and held to one number by hand (`expected_verdicts.F_AT_TWO`). The
oracles have formulas of their own for those that the sources treat. For any other they are completed from f:
sums, gradients, top-k heads and objectives of the package are compared with explicit sums over that f.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from kl_companion.divergences import DIVERGENCES, T, W
from tests.oracles import optima, top_k, worlds
from tests.support.expected_verdicts import EXPECTED

_MODULES = [{"log": torch.log, "sqrt": torch.sqrt, "exp": torch.exp, "Abs": torch.abs, "abs": torch.abs}]


def on_tensors(f: sympy.Expr) -> Callable[[torch.Tensor], torch.Tensor]:
    """f as a function of a tensor t: SymPy's own translation, its constants folded to floats first."""

    def constant(e: sympy.Basic) -> bool:
        return bool(e.is_number) and not e.is_Rational and not e.is_Float

    folded: sympy.Expr = f.replace(constant, lambda e: e.evalf(17))
    compiled: Callable[[torch.Tensor], torch.Tensor] = sympy.lambdify(T, folded, modules=_MODULES)
    return compiled


def complete() -> None:
    """Give every registered divergence without an oracle of its own the one that follows from its f."""
    for name in set(DIVERGENCES) - set(worlds.GENERATORS):
        d = DIVERGENCES[name]
        worlds.GENERATORS[name] = on_tensors(d.as_given.f)
        top_k.NORMALIZED[name] = on_tensors(d.f)
        if d.slope:
            top_k.SLOPE[name] = float(d.slope)
        optima.SLOPES[name] = sympy.lambdify(T, d.derivative, "math")
        if d.at_infinity.is_finite:
            optima.OUTSIDE[name] = float(d.at_infinity)
        value, weight = W * d.f.subs(T, 1 / W), sympy.diff(d.f, T).subs(T, 1 / W)
        # what it has the gradient of as a penalty in the reward has no name that is known beforehand
        EXPECTED.setdefault(f"kf_plus_plus({name})", (value, weight if d.smooth else None, {name: 1}, ...))
