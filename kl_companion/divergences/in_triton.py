"""The entries of a divergence as the text of a Triton function, from the same expressions as for tensors."""

from __future__ import annotations

from functools import cache

import sympy
from sympy.printing.str import StrPrinter

from kl_companion.divergences.compiled import folded_constants, forms_of_larger
from kl_companion.divergences.generator import Divergence


class _Printer(StrPrinter):
    """Writes numbers as floats and powers as calls of ``power`` and square roots: Triton has no ``**``."""

    def _print_Rational(self, expr: sympy.Expr) -> str:
        return repr(float(expr)) if expr >= 0 else f"({float(expr)!r})"

    _print_Integer = _print_Half = _print_Float = _print_One = _print_NegativeOne = _print_Rational

    def _print_Pow(self, expr: sympy.Expr, rational: bool = False) -> str:
        base, exponent = self._print(expr.base), expr.exp
        if exponent.could_extract_minus_sign():
            return f"(1.0 / {self._print(expr.base**-exponent)})"
        if exponent == sympy.Rational(1, 2):
            return f"tl.sqrt({base})"
        if not exponent.is_Integer:
            return f"tl.exp({self._print(exponent)} * tl.log({base}))"
        return f"power({base}, {int(exponent)})"

    def _print_Mul(self, expr: sympy.Expr) -> str:
        return "(" + " * ".join(map(self._print, expr.args)) + ")"

    def _print_Add(self, expr: sympy.Expr, order: object = None) -> str:
        return "(" + " + ".join(map(self._print, expr.args)) + ")"

    def _print_exp(self, expr: sympy.Expr) -> str:
        return f"tl.exp({self._print(expr.args[0])})"

    def _print_log(self, expr: sympy.Expr) -> str:
        return f"tl.log({self._print(expr.args[0])})"

    def _print_Abs(self, expr: sympy.Expr) -> str:
        return f"tl.abs({self._print(expr.args[0])})"

    def _print_sign(self, expr: sympy.Expr) -> str:
        x = self._print(expr.args[0])
        return f"tl.where({x} > 0.0, 1.0, tl.where({x} < 0.0, -1.0, {x}))"


@cache
def source_of_larger(d: Divergence) -> str:
    """Return the text of ``of_larger(u)``, which returns the numbers of `OfLarger` for u = -|log t|.

    The text calls functions of Triton's language ``tl``, and expm1, log1p and power(x, n).
    """
    forms, m = forms_of_larger(d)
    shared, reduced = sympy.cse(folded_constants(forms))
    lines = ["def of_larger(u):"]
    if m is not None:
        lines += [f"X = tl.exp(u * {1 / m!r})", f"W = expm1(u * {1 / m!r})"]
    write = _Printer().doprint
    lines += [f"{name} = {write(expr)}" for name, expr in shared]
    # a constant becomes numbers of the shape of u, which is finite
    results = (write(e) if e.free_symbols else f"0.0 * u + {write(e)}" for e in reduced[0])
    return "\n    ".join([*lines, f"return {', '.join(results)}"]) + "\n"
