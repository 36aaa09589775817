"""What emapg2026 prints in appendix I, tables 6 and 7 among it: data to compare with, never to build on.

Symbols are ``T`` (t = policy/reference), ``S`` (a value of f'), ``R``, ``LAMBDA``, ``BETA``, ``TILDE`` (the
normalization of the reverse KL, lambda with a tilde), ``Z_STAR`` and ``Z``.
"""

from __future__ import annotations

from typing import NamedTuple

import sympy

from kl_companion.divergences import T

S, R, LAMBDA, TILDE, Z_STAR = sympy.symbols("s R lambda lambda_tilde Z_star", real=True)
BETA, Z = sympy.symbols("beta Z", positive=True)


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


_HALF = sympy.Rational(1, 2)
_X = (R - LAMBDA) / BETA

# eqs (134) and (135), which stand in the table of appendix I.1 once more
REVERSE_FROM_FORWARD = -BETA * sympy.log(Z_STAR - R) + BETA * sympy.log(BETA * Z)
FORWARD_FROM_REVERSE = Z_STAR - BETA * Z * sympy.exp(-R / BETA)

TABLE_6: dict[str, Form] = {
    "Reverse KL": Form(
        T * sympy.log(T) - T + 1,
        sympy.log(T),
        sympy.exp(S),
        sympy.exp(_X),
    ),
    "Forward KL": Form(
        -sympy.log(T) + T - 1,
        1 - 1 / T,
        1 / (1 - S),
        1 / (1 - _X),
    ),
    "Jensen-Shannon": Form(
        _HALF * (T * sympy.log(T) - (T + 1) * sympy.log((T + 1) / 2)),
        _HALF * sympy.log(2 * T / (T + 1)),
        1 / (2 * sympy.exp(-2 * S) - 1),
        sympy.exp(2 * _X) / (2 - sympy.exp(2 * _X)),
    ),
    "Squared Hellinger": Form(
        (sympy.sqrt(T) - 1) ** 2,
        1 - 1 / sympy.sqrt(T),
        1 / (1 - S) ** 2,
        1 / (1 - _X) ** 2,
    ),
    "Pearson": Form(
        _HALF * (T - 1) ** 2,
        T - 1,
        S + 1,
        1 + _X,
    ),
    "Neyman": Form(
        (T - 1) ** 2 / T,
        1 - 1 / T**2,
        1 / sympy.sqrt(1 - S),
        1 / sympy.sqrt(1 - _X),
    ),
}
TABLE_7: dict[str, Transform] = {
    "Forward KL": Transform(
        1 / (1 - S),
        -BETA * sympy.log(1 - _X) + TILDE,
        sympy.Gt(LAMBDA, R - BETA),
    ),
    "Jensen-Shannon": Transform(
        1 / (2 * sympy.exp(-2 * S) - 1),
        -BETA * sympy.log(2 * sympy.exp(-2 * _X) - 1) + TILDE,
        sympy.Gt(LAMBDA, R - BETA / 2 * sympy.log(2)),
    ),
    "Squared Hellinger": Transform(
        1 / (1 - S) ** 2,
        -2 * BETA * sympy.log(1 - _X) + TILDE,
        sympy.Gt(LAMBDA, R - BETA),
    ),
    "Pearson": Transform(
        1 + S,
        BETA * sympy.log(1 + _X) + TILDE,
        sympy.Lt(LAMBDA, R + BETA),
    ),
    "Neyman": Transform(
        1 / sympy.sqrt(1 - S),
        -BETA / 2 * sympy.log(1 - _X) + TILDE,
        sympy.Gt(LAMBDA, R - BETA),
    ),
}


def alpha_6(a: sympy.Expr) -> Form:
    """Table 6's alpha row at alpha = a."""
    return Form(
        4 / (1 - a**2) * (1 - T ** ((1 + a) / 2)),
        -2 / (1 - a) * T ** ((a - 1) / 2),
        (-(1 - a) / 2 * S) ** (2 / (a - 1)),
        (-(1 - a) / 2 * _X) ** (2 / (a - 1)),
    )


def alpha_7(a: sympy.Expr) -> Transform:
    """Table 7's alpha row at alpha = a."""
    return Transform(
        (-(1 - a) / 2 * S) ** (2 / (a - 1)),
        2 * BETA / (a - 1) * sympy.log(-(1 - a) / 2 * _X) + TILDE,
        sympy.Gt(-(1 - a) * (R - LAMBDA), 0),
    )
