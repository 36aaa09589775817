"""What emapg2026 prints in its tables 5, 9 and 10, as it is printed: data to compare with, never to build on.

Symbols are ``T`` (t = policy/reference) and ``W`` (w = 1/t). Labels are the source's, which in tables 9
and 10 call t log t "Forward KL": there the direction of the whole divergence decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import sympy

from kl_companion.divergences import T, W


class Printed(NamedTuple):
    """A row of a table: the generator f(t), and the expression in w that stands beside it.

    In table 5 it is the value of the sampled estimator (its factors r and sg removed), in table 9
    phi_f(w), in table 10 psi_f(w).
    """

    f: sympy.Expr
    in_w: sympy.Expr


_HALF = sympy.Rational(1, 2)
_JS = _HALF * (T * sympy.log(T) - (T + 1) * sympy.log((T + 1) / 2))
_JS_WEIGHT = _HALF * sympy.log(2 / (1 + W))

TABLE_5: dict[str, Printed] = {
    "Forward KL": Printed(-sympy.log(T), W * sympy.log(W)),
    "Reverse KL": Printed(T * sympy.log(T), -sympy.log(W)),
    "Pearson": Printed((T - 1) ** 2, (1 - W) ** 2 / W),
    "Neyman": Printed((T - 1) ** 2, (1 - W) ** 2),
    "Squared Hellinger": Printed(_HALF * (sympy.sqrt(T) - 1) ** 2, _HALF * (1 - sympy.sqrt(W)) ** 2),
    "Jensen-Shannon": Printed(_JS, _HALF * (-sympy.log(W) - (1 + W) * sympy.log((1 + W) / (2 * W)))),
    "Total variation": Printed(_HALF * sympy.Abs(T - 1), _HALF * sympy.Abs(1 - W)),
}
TABLE_9: dict[str, Printed] = {
    "Forward KL": Printed(T * sympy.log(T), -sympy.log(W) + 1),
    "Reverse KL": Printed(-sympy.log(T), -W),
    "Jensen-Shannon": Printed(_JS, _JS_WEIGHT),
    "Squared Hellinger": Printed((sympy.sqrt(T) - 1) ** 2, 1 - sympy.sqrt(W)),
    "Pearson": Printed((T - 1) ** 2, -2 + 2 / W),
    "Neyman": Printed((T - 1) ** 2 / T, 1 - W**2),
    "Total variation": Printed(_HALF * sympy.Abs(T - 1), -_HALF * sympy.sign(W - 1)),
}
TABLE_10: dict[str, Printed] = {
    "Forward KL": Printed(T * sympy.log(T), -W),
    "Reverse KL": Printed(-sympy.log(T), -sympy.log(W) + 1),
    "Jensen-Shannon": Printed(_JS, _JS_WEIGHT),
    "Squared Hellinger": Printed((sympy.sqrt(T) - 1) ** 2, 1 - sympy.sqrt(W)),
    "Pearson": Printed((T - 1) ** 2, 1 - W**2),
    "Neyman": Printed((T - 1) ** 2 / T, -2 + 2 / W),
    "Total variation": Printed(_HALF * sympy.Abs(T - 1), -_HALF * sympy.sign(W - 1)),
}


def alpha_5(a: sympy.Expr) -> Printed:
    """Table 5's alpha row at alpha = a: the power form, another parameter than in tables 9 and 10."""
    f = (T**a - 1 - a * (T - 1)) / (a * (a - 1))
    return Printed(f, (W ** (1 - a) + (a - 1) * W - a) / (a * (a - 1)))


def _amari(a: sympy.Expr) -> sympy.Expr:
    return 4 / (1 - a**2) * (1 - T ** ((1 + a) / 2))


def alpha_9(a: sympy.Expr) -> Printed:
    """Table 9's alpha row at alpha = a."""
    return Printed(_amari(a), 2 / (a - 1) * W ** ((1 - a) / 2))


def alpha_10(a: sympy.Expr) -> Printed:
    """Table 10's alpha row at alpha = a."""
    return Printed(_amari(a), -2 / (a + 1) * W ** ((a + 1) / 2) - 4 / ((a - 1) * (a + 1)))


TABLES: dict[int, dict[str, Printed]] = {5: TABLE_5, 9: TABLE_9, 10: TABLE_10}
ALPHA: dict[int, Callable[[sympy.Expr], Printed]] = {5: alpha_5, 9: alpha_9, 10: alpha_10}
