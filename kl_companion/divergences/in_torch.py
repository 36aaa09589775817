"""The weights of Kf++ as a line of PyTorch that anybody can paste."""

from __future__ import annotations

from typing import NamedTuple

import sympy
from sympy.printing.pytorch import TorchPrinter

from kl_companion.divergences.registry import Divergence, T, W


class Printed(NamedTuple):
    """In w = reference / policy: the value w f(1/w), and f'(1/w), the weight of the score."""

    value: str
    weight: str


class _Printer(TorchPrinter):
    """Prints constants as numbers: torch functions refuse Python floats."""

    def _print_log(self, expr: sympy.Expr) -> str:
        return f"{float(expr)!r}" if expr.is_number else f"torch.log({self._print(expr.args[0])})"

    def _print_Pow(self, expr: sympy.Expr, rational: bool = False) -> str:
        return f"{self.parenthesize(expr.base, 1000)} ** {float(expr.exp):g}"


def printed(divergence: Divergence) -> Printed:
    """Value and weight of Kf++ for a divergence, as PyTorch."""
    value, weight = divergence.dual.subs(T, W), divergence.derivative.subs(T, 1 / W)
    return Printed(*(str(_Printer().doprint(sympy.expand_log(x))) for x in (value, weight)))
