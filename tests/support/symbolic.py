"""Whether two expressions are equal at many points, to 30 digits."""

import sympy
from sympy import Rational

from kl_companion.divergences import T

POINTS = [Rational(1, 50), Rational(2, 5), Rational(9, 10), 1, Rational(13, 10), 2, 11]


def equal(a, b):
    a, b = sympy.sympify(a), sympy.sympify(b)
    if not (a.is_finite and b.is_finite):
        return a == b
    return abs(sympy.N(a - b, 40)) < sympy.Float("1e-30")


def equal_functions(a, b, symbol=T):
    return all(equal(a.subs(symbol, p), b.subs(symbol, p)) for p in POINTS)
