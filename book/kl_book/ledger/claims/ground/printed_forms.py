"""What emapg2026 prints of f-divergences: tables 5 to 7, 9 and 10 (`printed_forms.yml`) as expressions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import sympy
import yaml

from kl_companion.divergences import T, W

S, R, LAMBDA, TILDE, Z_STAR = sympy.symbols("s R lambda lambda_tilde Z_star", real=True)
BETA, Z = sympy.symbols("beta Z", positive=True)
SYMBOLS = {
    "t": T,
    "w": W,
    "s": S,
    "R": R,
    "lam": LAMBDA,
    "beta": BETA,
    "tilde": TILDE,
    "x": (R - LAMBDA) / BETA,
}

# eqs (134) and (135), which stand in the table of appendix I.1 once more
REVERSE_FROM_FORWARD = -BETA * sympy.log(Z_STAR - R) + BETA * sympy.log(BETA * Z)
FORWARD_FROM_REVERSE = Z_STAR - BETA * Z * sympy.exp(-R / BETA)


class Printed(NamedTuple):
    """A row of table 5, 9 or 10: the generator f(t), and the expression in w that stands beside it."""

    f: sympy.Expr
    in_w: sympy.Expr


class Form(NamedTuple):
    """A row of table 6; ``tilt`` is the printed optimal policy divided by the reference."""

    f: sympy.Expr
    slope: sympy.Expr
    inverse: sympy.Expr
    tilt: sympy.Expr


class Transform(NamedTuple):
    """A row of table 7: the inverse again, the transformed reward, and the printed range of lambda."""

    inverse: sympy.Expr
    reward: sympy.Expr
    within: sympy.core.relational.Relational


_ROWS = {5: Printed, 6: Form, 7: Transform, 9: Printed, 10: Printed}
_TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))


def _row(table: int, name: str, **symbols: sympy.Expr) -> Any:
    return _ROWS[table](*(sympy.sympify(x, locals=SYMBOLS | symbols) for x in _TEXTS[table][name]))


def alpha_row(table: int, a: sympy.Expr) -> Any:
    """The alpha row of a table at alpha = a."""
    return _row(table, "alpha", a=a)


TABLES: dict[int, dict[str, Any]] = {
    table: {name: _row(table, name) for name in rows if name != "alpha"} for table, rows in _TEXTS.items()
}
