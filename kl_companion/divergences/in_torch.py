"""The weights of Kf++ as a line of PyTorch that anybody can paste."""

from __future__ import annotations

import sympy
from sympy.printing.pytorch import TorchPrinter

from kl_companion.divergences.forms import T, W
from kl_companion.divergences.generator import Divergence


class _Printer(TorchPrinter):
    """Prints constants as numbers: torch functions refuse Python floats."""

    def _print_log(self, expr: sympy.Expr) -> str:
        return f"{float(expr)!r}" if expr.is_number else f"torch.log({self._print(expr.args[0])})"

    def _print_Pow(self, expr: sympy.Expr, rational: bool = False) -> str:
        power = int(expr.exp) if expr.exp.is_Integer else float(expr.exp)
        return f"{self.parenthesize(expr.base, 1000)} ** {power!r}"


def printed(divergence: Divergence) -> dict[str, str]:
    """In w = reference / policy: the ``value`` w f(1/w), and f'(1/w), the ``weight`` of the score."""
    found = {"value": divergence.dual.subs(T, W), "weight": divergence.derivative.subs(T, 1 / W)}
    return {name: str(_Printer().doprint(sympy.expand_log(x))) for name, x in found.items()}
