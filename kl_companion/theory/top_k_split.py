"""The true objective of a divergence that is split in two: summed over a set S of tokens, sampled outside.

Let a head add up the entries Q f(P/Q) of S, and let a tail sample an estimate outside S. If the
gradient of an entry of the head is P (f~'(t) + a_S) times the score, and that of the tail is
(f~'(t) + a_T) times the score, with f~ the normalized generator and constants a_S and a_T, then

    E[gradient] = gradient of D_f + (a_S - a_T) * gradient of P(S),

because the score sums to zero over the whole vocabulary and to the gradient of P(S) over S. In the
same way constants v_S and v_T in Q f~(t) + v (P - Q) leave (v_S - v_T) (P(S) - Q(S)) in the value.
Over the whole vocabulary every such constant is free; here only their *difference* must vanish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import sympy

from kl_companion.checks import check_choice
from kl_companion.divergences import Divergence, T, W, get_divergence
from kl_companion.estimators.sampled import FORMS, Form, kf_plus_plus
from kl_companion.theory.calculus import LOGP, gradient_weight, in_ratio, trace, value, vanishes

Entry = Callable[[Any, Any], Any]


class Split(NamedTuple):
    """What a head and a tail leave behind, beside the divergence itself.

    Attributes:
        value: Coefficient of P(S) - Q(S) in the expected value; None if what is left is no multiple of it.
        gradient: Coefficient of the gradient of P(S) in the expected gradient; None likewise.
    """

    value: sympy.Expr | None
    gradient: sympy.Expr | None

    @property
    def unbiased(self) -> bool:
        """Whether value and gradient are those of the divergence, for every set S."""
        return self.value == 0 and self.gradient == 0


def head_entry(divergence: str | Divergence, form: Form = "bregman") -> Entry:
    """Q f(P/Q) of one entry of a head, as an expression of (logp, ref_logp); see `top_k_f_divergence`."""
    check_choice("form", form, FORMS)
    d = get_divergence(divergence)
    written = d if form == "bregman" else d.as_given
    return lambda logp, ref_logp: sympy.exp(ref_logp) * written.f.subs(T, sympy.exp(logp - ref_logp))


def head_value(head: Entry) -> sympy.Expr:
    """An entry of a head divided by P, as a function of w."""
    return in_ratio(trace(head) / sympy.exp(LOGP))


def head_weight(head: Entry) -> sympy.Expr:
    """The factor in front of P times the score in the gradient of an entry, as a function of w."""
    return in_ratio(sympy.diff(trace(head), LOGP) / sympy.exp(LOGP))


def _constant(expr: sympy.Expr, unit: sympy.Expr) -> sympy.Expr | None:
    """c with expr = c * unit identically in W, or None; read off at one point, then tried at all."""
    at_two = sympy.N((expr / unit).subs(W, 2), 50)
    c = sympy.nsimplify(at_two, rational=True, tolerance=1e-30)
    return c if vanishes(expr - c * unit) else None


def split(head: Entry, tail: Entry, divergence: str | Divergence) -> Split:
    """What a head and a tail, written as functions of (logp, ref_logp), leave behind.

    Args:
        head: One entry of the head, a function that can be fed symbols (see `head_entry`).
        tail: A sampled estimator (see `kf_plus_plus`), or any function of (logp, ref_logp).
        divergence: What they are meant to estimate together.

    Returns:
        `Split`; its entries are exact numbers, or None where what is left depends on more than P(S).

    Raises:
        ValueError: an expression that depends on more than the ratio.
    """
    d = get_divergence(divergence)
    exact = d.dual.subs(T, W)  # Q f~(P/Q) divided by P
    values = [_constant(x - exact, 1 - W) for x in (head_value(head), value(tail))]
    weights = [_constant(x - d.phi, sympy.S.One) for x in (head_weight(head), gradient_weight(tail))]
    return Split(_difference(values), _difference(weights))


def _difference(constants: list[sympy.Expr | None]) -> sympy.Expr | None:
    head, tail = constants
    return None if head is None or tail is None else head - tail


def split_of(divergence: str | Divergence, form: Form) -> Split:
    """What the head and the tail of one form of `top_k_f_divergence` leave behind."""
    return split(head_entry(divergence, form), kf_plus_plus(divergence, form), divergence)
