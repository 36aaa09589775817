"""Symbols of generators, exact numbers, and short forms of expressions that nothing can blow up."""

from __future__ import annotations

from fractions import Fraction
from numbers import Rational
from typing import TypeAlias

import sympy

Number: TypeAlias = float | Fraction | sympy.Expr
T = sympy.Symbol("t", positive=True)
W = sympy.Symbol("w", positive=True)

_ROUNDING = 2.0**-52  # of a sum such as 1 - 0.97, whose terms are about 1
_DIGITS = 6  # of a denominator that rounding does not hit by chance
_NEXT_TO_NOTHING = 1e-9  # relative rounding of a small coefficient
LARGEST_POWER = 64  # beyond it SymPy expands polynomials for minutes


def simplest_fraction(x: float, *, rounded: bool = False) -> Fraction:
    """Return a fraction of small denominator that is the float ``x``: 1/3 for 0.333...3, 97/100 for 0.97.

    Args:
        x: A finite number.
        rounded: Whether ``x`` is the result of arithmetic, so that a fraction within its rounding is meant:
            1 - 0.97 is 3/100.
    """
    for digits in range(17):
        fraction = Fraction(x).limit_denominator(10**digits)
        off = abs(float(fraction) - x)
        near = off <= _ROUNDING and off <= _NEXT_TO_NOTHING * abs(x)
        if off == 0 or (rounded and digits <= _DIGITS and near):
            return fraction
    return Fraction(repr(x))


def exact(x: Number) -> sympy.Expr:
    """Return a number as SymPy's exact one: a float as the simplest fraction that is this float."""
    if isinstance(x, sympy.Expr) and not x.is_Float:
        return x
    fraction = Fraction(x) if isinstance(x, Rational) else simplest_fraction(float(x))
    return sympy.Rational(fraction.numerator, fraction.denominator)


def label(x: sympy.Expr) -> str:
    """Return the text of an exact number, another one for every number: 0.5, 1/3, sqrt(2)."""
    if not x.is_Rational or x.is_Integer:
        return str(x)
    short = repr(float(x))
    return short if sympy.Rational(short) == x else str(x)


def without_floats(expr: sympy.Expr) -> sympy.Expr:
    """Return an expression with its floats as the fractions that they round, which SymPy can factor."""
    fractions = {x: simplest_fraction(float(x), rounded=True) for x in expr.atoms(sympy.Float)}
    return expr.xreplace({x: sympy.Rational(q.numerator, q.denominator) for x, q in fractions.items()})


def tidy(expr: sympy.Expr) -> sympy.Expr:
    """Return a short form of an expression in positive symbols, with |x| and sign(x) left as they are."""
    if not expr.has(sympy.sign, sympy.Abs):
        return short(sympy.expand_log(expr))
    opened = expr.replace(sympy.Abs, lambda a: a * sympy.sign(a))
    opened = sympy.expand(opened.replace(sympy.sign, lambda a: sympy.sign(sympy.factor(sympy.together(a)))))
    for kink in opened.atoms(sympy.sign):
        (inside,) = kink.args
        rest, slope = opened.subs(kink**2, 1).as_independent(kink, as_Add=True)
        slope = sympy.factor(sympy.cancel(slope / kink))
        over = sympy.cancel(slope / inside)
        # (c + 0 inside) sign(inside) stays; c inside sign(inside) is c |inside|
        opened = sympy.expand(rest) + (
            over * sympy.Abs(inside) if not over.has(inside) and over.is_number else slope * kink
        )
    return opened


def short(expr: sympy.Expr) -> sympy.Expr:
    """Return the expression as `sympy.simplify` writes it, or `by_logs` where that would blow it up.

    ``simplify`` writes p/q log x as a q-th part of log(x**p): for 97/100 that takes minutes, and the power
    overflows where the logarithm does not.
    """
    if not any(log.has(sympy.Add) for log in expr.atoms(sympy.log)):
        return by_logs(expr) if highest_power(expr) > LARGEST_POWER else sympy.simplify(expr)
    apart = by_logs(expr)
    if any(x.q > 2 for x in apart.atoms(sympy.Rational)):
        return apart
    shorter = sympy.simplify(expr)
    return apart if any(log.has(sympy.Pow) for log in shorter.atoms(sympy.log)) else shorter


def highest_power(expr: sympy.Expr) -> int:
    """Return the largest numerator or denominator of an exponent."""
    powers = (p.exp for p in expr.atoms(sympy.Pow) if p.exp.is_Rational)
    return max((max(abs(x.p), x.q) for x in powers), default=0)


def by_logs(expr: sympy.Expr) -> sympy.Expr:
    """Return a sum of logarithms times their coefficients, each logarithm 0 at 1 where that can be.

    Only products are multiplied out and only equal logarithms are collected, so that the work is
    proportional to the length of the expression, whatever its numbers are.
    """
    whole = sympy.expand(logs_apart(expr), log=False)
    coefficients: dict[sympy.Expr, sympy.Expr] = {}
    for term in sympy.Add.make_args(whole):
        rest, logs = term.as_independent(sympy.log, as_Add=False)
        coefficients[logs] = coefficients.get(logs, sympy.S.Zero) + rest
    return sympy.Add(*(_coefficient(c) * logs for logs, c in coefficients.items()))


def logs_apart(expr: sympy.Expr) -> sympy.Expr:
    """Return the expression with logarithms of products as sums, of factors that are 1 at 1."""
    return expr.replace(sympy.log, _log_apart)


def _log_apart(argument: sympy.Expr) -> sympy.Expr:
    symbols = argument.free_symbols
    if not symbols:
        return sympy.log(argument)
    parts = []
    for factor in sympy.Mul.make_args(sympy.factor(sympy.together(argument))):
        base, power = factor.as_base_exp()
        at_one = base.subs(dict.fromkeys(symbols, 1))
        if not (at_one.is_positive and power.is_number):
            return sympy.log(argument)
        unit = base if base.is_Symbol or not base.free_symbols else sympy.expand(base / at_one)
        parts.append((unit, at_one, power))
    constant = sympy.Mul(*(at_one**power for _, at_one, power in parts))
    logs = [power * sympy.log(unit) for unit, _, power in parts if unit.free_symbols]
    return sympy.Add(*logs, sympy.log(constant))


def _coefficient(c: sympy.Expr) -> sympy.Expr:
    c = sympy.powsimp(sympy.expand(c))
    rational = bool(c.free_symbols) and all(c.is_rational_function(x) for x in c.free_symbols)
    return sympy.factor(sympy.together(c)) if rational and highest_power(c) <= LARGEST_POWER else c
