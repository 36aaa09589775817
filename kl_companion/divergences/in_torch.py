"""The weights of Kf++ as a line of PyTorch that anybody can paste."""

from __future__ import annotations

import sympy
from sympy.printing.pytorch import TorchPrinter

from kl_companion.divergences.registry import Divergence, T, W


class _Printer(TorchPrinter):
    """Prints constants as numbers: torch functions refuse Python floats."""

    def _print_log(self, expr: sympy.Expr) -> str:
        return f"{float(expr)!r}" if expr.is_number else f"torch.log({self._print(expr.args[0])})"

    def _print_Pow(self, expr: sympy.Expr, rational: bool = False) -> str:
        return f"{self.parenthesize(expr.base, 1000)} ** {float(expr.exp):g}"


def printed(divergence: Divergence) -> dict[str, str]:
    """In w = reference / policy: the ``value`` w f(1/w), and f'(1/w), the ``weight`` of the score."""
    found = {"value": divergence.dual.subs(T, W), "weight": divergence.derivative.subs(T, 1 / W)}
    return {name: str(_Printer().doprint(sympy.expand_log(x))) for name, x in found.items()}
