"""What a divergence that is split over the vocabulary really descends: head on a set S, tail outside it.

Let a head add up the entries Q f(P/Q) of S, and let a tail sample an estimate outside S. If the
gradient of an entry of the head is P (f~'(t) + a_S) times the score, and that of the tail is
(f~'(t) + a_T) times the score, with f~ the normalized generator and constants a_S and a_T, then

    E[gradient] = gradient of D_f + (a_S - a_T) * gradient of P(S),

because the score sums to zero over the whole vocabulary and to the gradient of P(S) over S. In the
same way constants v_S and v_T in Q f~(t) + v (P - Q) leave (v_S - v_T) (P(S) - Q(S)) in the value.
Over the whole vocabulary every such constant is free; here only their *difference* must vanish.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import sympy
import torch

from kl_companion.checks import check_choice, check_distribution, check_scalar
from kl_companion.divergences import Divergence, T, W, get_divergence
from kl_companion.estimators.sampled import FORMS, Form, kf_plus_plus
from kl_companion.estimators.top_k import checked_head
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


def mass_penalty_optimum(
    ref_logp: torch.Tensor, indices: torch.Tensor, coefficient: float, divergence: str = "reverse_kl"
) -> torch.Tensor:
    """Where D(policy || reference) + coefficient * P(S) is least, for a fixed set S: log-probs [vocab].

    With coefficient 1 (reverse KL) and -1 (forward KL) this is where the published top-k forms take
    the policy: P(S) = Q(S)/(Q(S) + e (1 - Q(S))), and P(S) = sqrt(Q(S)). Ratios inside S and outside
    it stay those of the reference.

    Args:
        ref_logp: Normalized log-probs of the reference, [vocab], one row.
        indices: The set S, [k] int64.
        coefficient: Weight of P(S).
        divergence: ``"reverse_kl"`` or ``"forward_kl"``.

    Raises:
        ValueError: another divergence, more than one row, rows that are not normalized, indices that are no
            tokens of the vocabulary, each once, or a coefficient that is not finite or beside which the dtype
            rounds the reference away.
    """
    check_choice("divergence", divergence, ("reverse_kl", "forward_kl"))
    _check_row(ref_logp)
    checked_head(indices, ref_logp.shape[:-1], len(ref_logp))
    check_scalar("coefficient", coefficient)
    eps = torch.finfo(ref_logp.dtype).eps
    if abs(coefficient) * eps >= 1:
        raise ValueError(
            f"coefficient is {coefficient}, expected less than {1 / eps:.3g} in size: beyond that nothing is "
            f"left of the reference in {ref_logp.dtype}"
        )
    inside = torch.zeros_like(ref_logp).index_fill(-1, indices, 1.0)
    if divergence == "reverse_kl":
        return (ref_logp - coefficient * inside).log_softmax(-1)
    mass = (ref_logp.exp() * inside).sum().item()
    if mass >= 1.0 or mass <= 0.0:  # all or nothing: P(S) is a constant
        return ref_logp.log_softmax(-1)
    # stationary points are Q/(lambda + coefficient 1_S); the larger root is the one inside the simplex
    half = (1 - coefficient) / 2
    multiplier = half + math.sqrt(half**2 + coefficient * (1 - mass))
    return (ref_logp - (multiplier + coefficient * inside).log()).log_softmax(-1)


def top_k_mass_optimum(ref_logp: torch.Tensor, k: int) -> torch.Tensor:
    """Where KL(policy || reference) + (the sum of the policy's k largest probabilities) is least: [vocab].

    This is where the published top-k reverse KL goes when the head is taken anew from the policy at
    each step. The sum of the k largest probabilities is a convex function with the indicator of the
    head as its subgradient, so the minimum is unique. Its entries are Q e^(-a)/Z with a in [0, 1] and
    the a summing to k: what is well inside the head is lowered by e, what is well outside is left, and
    what lies between ends level.

    Args:
        ref_logp: Normalized log-probs of the reference, [vocab], one row.
        k: Size of the head, 0 to vocab.

    Raises:
        ValueError: k out of range, more than one row, or rows that are not normalized.
    """
    _check_row(ref_logp)
    if not 0 <= k <= len(ref_logp):
        raise ValueError(f"k is {k}, expected 0 to {len(ref_logp)}")
    reached = ref_logp[ref_logp.isfinite()]
    if k == 0 or k >= len(reached):  # nothing or everything: the penalty is a constant
        return ref_logp.log_softmax(-1)
    low, high = reached.min().item() - 1.0, reached.max().item()
    for _ in range(200):  # the sum of the a falls as the level rises
        level = (low + high) / 2
        if (ref_logp - level).clamp(0.0, 1.0).sum() > k:
            low = level
        else:
            high = level
    return (ref_logp - (ref_logp - (low + high) / 2).clamp(0.0, 1.0)).log_softmax(-1)


def _check_row(ref_logp: torch.Tensor) -> None:
    if ref_logp.ndim != 1:
        raise ValueError(f"ref_logp has shape {list(ref_logp.shape)}, expected one row [vocab]")
    check_distribution("ref_logp", ref_logp)
