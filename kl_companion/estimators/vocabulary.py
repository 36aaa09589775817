"""Exact divergences from whole next-token distributions: no sampling, so value and gradient are exact.

Shapes: ``logp_all`` and ``ref_logp_all`` are normalized log-probs [..., vocab]; results drop the last
axis. A vocabulary entry that is -inf on both sides (a masked token) contributes nothing, in value and
in gradient.

Types, dtypes and shapes are always checked, values with ``validate=True`` only; without it the functions work
under `torch.func.vmap`, in compiled graphs and on a GPU without a pause.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from kl_companion.checks import check_distribution, check_shape, check_vocabulary, may_look, refuse_nan
from kl_companion.divergences import (
    DIVERGENCES,
    SUPPORT,
    Divergence,
    edges_of,
    generator_of_log,
    get_divergence,
    terms_of_log,
)
from kl_companion.estimators.record import ESTIMATOR_FAMILIES, Estimator, register_estimator
from kl_companion.host_reads import any_wrong

_MODERATE = 20.0  # log-ratios below which f(t) is computed at t = e^u directly, unless a power of t overflows


def _check_support(d: Divergence, lost: torch.Tensor, cost: float, text: str) -> None:
    """Refuse an infinite divergence, by name and place."""
    if math.isinf(cost) and any_wrong(lost):
        raise ValueError(f"{d.name} is infinite at {lost.nonzero()[0].tolist()}: {text}, {SUPPORT}")


def _reach(d: Divergence, dtype: torch.dtype) -> float:
    """Return the |log t| below which no power of t in f overflows ``dtype``; at most ``_MODERATE``."""
    steepest = max(max(abs(k), abs(1 - k)) for k, _ in terms_of_log(d, False))
    return min(_MODERATE, 0.9 * math.log(torch.finfo(dtype).max) / max(1.0, steepest))


def _entries(d: Divergence, log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Q f(P/Q) of every entry, from finite log-probs however far apart; no value decides the form."""
    u = log_p - log_q
    if all(0 <= k <= 1 for k, _ in terms_of_log(d, False)):
        # Q f(t) where t <= 1 and P dual(1/t) where t > 1: the same number, and neither overflows
        low, high = u.clamp(max=0.0), u.clamp(min=0.0)
        below = log_q.exp() * generator_of_log(d)(low)
        above = log_p.exp() * generator_of_log(d, dual=True)(-high)
        return torch.where(u > 0, above, below)
    reach = _reach(d, u.dtype)
    near = u.abs() < reach
    direct = log_q.exp() * generator_of_log(d)(u.clamp(-reach, reach))
    # Entries of the other form are masked, because the gradient of infinity times zero is NaN.
    far = far_entries(d, log_p.masked_fill(near, 0.0), log_q.masked_fill(near, 0.0))
    return torch.where(near, direct, far)


def far_entries(
    d: Divergence, log_p: torch.Tensor, log_q: torch.Tensor, *, slope: bool = False
) -> torch.Tensor:
    """Q f(P/Q) of every entry, from finite log-probs that lie far apart: powers and masses in one exponent.

    With ``slope`` its derivative by log P, which is P f'(P/Q).

    Where the two are near, its terms cancel.
    """
    u = log_p - log_q
    # (1 - k) log Q + k log P and not log Q + k u: an infinite slope must not be taken from another
    each = [((1 - k) * log_q + k * log_p).exp() * rest(u) for k, rest in terms_of_log(d, slope)]
    return torch.stack(each).sum(0)


def f_divergence(
    divergence: str | Divergence,
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    *,
    validate: bool = False,
) -> torch.Tensor:
    """D_f(policy || reference) of every row, exact.

    Args:
        divergence: A registered name or a `Divergence`.
        logp_all: Normalized log-probs of the policy, [..., vocab].
        ref_logp_all: Normalized log-probs of the reference, the same shape.
        validate: Whether values are checked too, which reads them on the host.

    Returns:
        [...], differentiable in both arguments. Where the divergence is infinite the result is inf; its
        gradient is then that of the entries that are finite. NaN gives NaN.

    Raises:
        ValueError: shapes or dtypes that differ from these; with ``validate=True`` also rows that are not
            normalized, NaN, or an infinite divergence.

    Source: emapg2026, eq (109).
    """
    d = get_divergence(divergence)
    check_rows(logp_all, ref_logp_all, validate=validate)
    return (finite_sum_of_entries if validate else sum_of_entries)(d, logp_all, ref_logp_all)


def check_rows(logp_all: torch.Tensor, ref_logp_all: torch.Tensor, *, validate: bool) -> None:
    """Raise ValueError unless both are [..., vocab] of one shape; ``validate`` checks values too."""
    check = check_distribution if validate else check_vocabulary
    check("logp_all", logp_all)
    check_shape("ref_logp_all", ref_logp_all, logp_all.shape, "logp_all [..., vocab]")
    check("ref_logp_all", ref_logp_all)


def finite_sum_of_entries(d: Divergence, log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """`sum_of_entries`, whose values are checked.

    Raises:
        ValueError: the sum is infinite by a mask, or its entries overflow so that it would be NaN.
    """
    no_p, no_q = log_p.isneginf(), log_q.isneginf()
    at_zero, at_infinity = edges_of(d)
    _check_support(d, no_p & ~no_q, at_zero, "the reference has probability where the policy has none")
    _check_support(d, no_q & ~no_p, at_infinity, "the policy has probability where the reference has none")
    return refuse_nan(d.name, sum_of_entries(d, log_p, log_q))


def sum_of_entries(d: Divergence, log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """sum_j Q_j f(P_j/Q_j) over the last axis, whatever entries stand there: [..., entries] -> [...].

    Entries may be -inf. An empty axis sums to 0. In eager mode on a CPU one value is read, which lets nearly
    all calls do with one evaluation of f.
    """
    u = log_p - log_q
    if may_look(u) and (not u.numel() or u.detach().abs().max() < _reach(d, u.dtype)):
        return (log_q.exp() * generator_of_log(d)(u)).sum(-1)
    no_p, no_q = log_p.isneginf(), log_q.isneginf()
    both = ~(no_p | no_q)
    inside = _entries(d, log_p.where(both, 0.0), log_q.where(both, 0.0)).where(both, 0.0).sum(-1)
    at_zero, at_infinity = edges_of(d)
    return inside + _edge(at_zero, log_q, no_p & ~no_q) + _edge(at_infinity, log_p, no_q & ~no_p)


def _edge(cost: float, log_mass: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
    """Return the cost of the mass at entries that one side has lost, [...]."""
    mass = log_mass.exp().where(lost, 0.0).sum(-1)
    if cost < math.inf:  # math.isinf cannot be traced with dynamic=True
        return mass * cost
    return torch.zeros_like(mass).masked_fill(lost.any(-1), cost) + 0 * mass  # NaN stays NaN


@register_estimator("exact_kl", target="reverse_kl", source="tang2025pitfalls, eq (5)", inputs="vocab")
def exact_kl(logp_all: torch.Tensor, ref_logp_all: torch.Tensor, *, validate: bool = False) -> torch.Tensor:
    """KL(policy || reference) of every row: [..., vocab] -> [...]. See `f_divergence` for ``validate``.

    Summed along sampled completions this is the Rao-Blackwellized estimator of the KL between two
    language models (amini2025better): the sampled log-ratio of every token is replaced by its expectation
    given the prefix. As a loss it has the token-level gradient; for that of whole sequences the value
    is also charged, detached, to the earlier tokens.
    """
    return f_divergence(DIVERGENCES["reverse_kl"], logp_all, ref_logp_all, validate=validate)


@register_estimator("exact_forward_kl", target="forward_kl", source="emapg2026, table 1", inputs="vocab")
def exact_forward_kl(
    logp_all: torch.Tensor, ref_logp_all: torch.Tensor, *, validate: bool = False
) -> torch.Tensor:
    """KL(reference || policy) of every row: [..., vocab] -> [...]. See `f_divergence` for ``validate``."""
    return f_divergence(DIVERGENCES["forward_kl"], logp_all, ref_logp_all, validate=validate)


def _member(text: str) -> Estimator:
    """The estimator ``f_divergence(pearson)``: exact, of any divergence."""
    d = get_divergence(text)
    return Estimator(
        f"f_divergence({d.name})", partial(f_divergence, d), d.name, "vocab", "emapg2026, eq (109)"
    )


ESTIMATOR_FAMILIES["f_divergence"] = _member
