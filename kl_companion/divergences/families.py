"""Families of generators with everything that is derived from them in closed form, whatever the parameter."""

from __future__ import annotations

import sympy
from sympy import exp, log, oo

from kl_companion.divergences.forms import T, W
from kl_companion.divergences.generator import Divergence

_S = sympy.Symbol("s", real=True)


def power(name: str, e: sympy.Expr, f: sympy.Expr, source: str) -> Divergence:
    """Return the divergence whose f is, up to a multiple of t - 1, t^e / (e (e - 1)).

    Args:
        name: Name to give it.
        e: Exponent, neither 0 nor 1.
        f: The generator as the source prints it.
        source: Bib key and place.
    """
    slope = sympy.diff(f, T).subs(T, 1)
    line, root = 1 + (e - 1) * _S, 1 / (e - 1)
    return Divergence(name, f - slope * (T - 1), source, None, slope).with_forms(
        derivative=sympy.expand((T ** (e - 1) - 1) / (e - 1)),
        dual=sympy.expand((T ** (1 - e) - e - (1 - e) * T) / (e * (e - 1))),
        phi=sympy.expand((W ** (1 - e) - 1) / (e - 1)),
        psi=sympy.expand((1 - W**e) / e),
        curvature=sympy.S.One,
        at_zero=1 / e if e > 0 else oo,
        at_infinity=1 / (1 - e) if e < 1 else oo,
        slope_range=(-oo if e < 1 else 1 / (1 - e), 1 / (1 - e) if e < 1 else oo),
        # SymPy would search for roots of a number that is factored out
        inverse_slope=(sympy.factor(line) if root.is_integer else line) ** root,
    )


def of_mixture(name: str, b: sympy.Expr, source: str) -> Divergence:
    """Return b KL(reference || m) + (1 - b) KL(policy || m), with m = b reference + (1 - b) policy.

    Args:
        name: Name to give it.
        b: Share of the reference, between 0 and 1.
        source: Bib key and place.
    """
    c = 1 - b
    of_odds = exp(_S / c)  # t/m
    return Divergence(name, c * T * log(T) - (b + c * T) * log(b + c * T), source).with_forms(
        derivative=c * log(T) - c * log(b + c * T),
        dual=b * T * log(T) - (c + b * T) * log(c + b * T),
        phi=-c * log(c + b * W),
        psi=-b * log(b + c * W),
        curvature=b * c,
        at_zero=-b * log(b),
        at_infinity=-c * log(c),
        slope_range=(-oo, -c * log(c)),
        inverse_slope=b * of_odds / (1 - c * of_odds),
    )


def skewed_forward(name: str, skew: sympy.Expr, source: str) -> Divergence:
    """Return KL(reference || m) with m = skew reference + (1 - skew) policy, skew between 0 and 1."""
    c = 1 - skew
    m, m_of_w = skew + c * T, skew + c * W
    return Divergence(name, c * (T - 1) - log(m), source, None, -c).with_forms(
        derivative=c**2 * (T - 1) / m,
        dual=T * log(T) - T * log(c + skew * T) - c * (T - 1),
        phi=c**2 * (1 - W) / (c + skew * W),
        psi=skew * c * (W - 1) / m_of_w - log(m_of_w),
        curvature=c**2,
        at_zero=-log(skew) - c,
        at_infinity=c,
        slope_range=(-(c**2) / skew, c),
        inverse_slope=1 / (c - _S) - skew / c,
    )


def skewed_reverse(name: str, skew: sympy.Expr, source: str) -> Divergence:
    """Return KL(policy || m) with m = skew policy + (1 - skew) reference, skew between 0 and 1."""
    c = 1 - skew
    m, m_of_w = c + skew * T, skew + c * W
    over_m = -sympy.LambertW(-skew * exp(_S - skew)) / skew  # t/m, whose log minus skew t/m is s - skew
    return Divergence(name, T * log(T) - T * log(m) - c * (T - 1), source, None, c).with_forms(
        derivative=log(T) - log(m) - skew * c * (T - 1) / m,
        dual=c * (T - 1) - log(skew + c * T),
        phi=-log(m_of_w) - skew * c * (1 - W) / m_of_w,
        psi=c**2 * (1 - W) / (c + skew * W),
        curvature=c**2,
        at_zero=c,
        at_infinity=-log(skew) - c,
        slope_range=(-oo, -log(skew) - c),
        inverse_slope=c * over_m / (1 - skew * over_m),
    )
