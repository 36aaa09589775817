"""Exact divergences from whole next-token distributions: no sampling, so value and gradient are exact.

Shapes: ``logp_all`` and ``ref_logp_all`` are normalized log-probs [..., vocab]; results drop the last
axis. A vocabulary entry that is -inf on both sides (a masked token) contributes nothing, in value and
in gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from kl_companion.checks import check_distribution, check_shape, refuse_nan
from kl_companion.divergences import (
    DIVERGENCES,
    SUPPORT,
    Divergence,
    generator_of_log,
    get_divergence,
    terms_of_log,
)
from kl_companion.estimators.record import ESTIMATOR_FAMILIES, Estimator, register_estimator

_MODERATE = 20.0  # log-ratios below which no power of t that stands in a generator overflows float32


def _check_support(d: Divergence, dead: torch.Tensor, cost: float, text: str) -> None:
    """Refuse an infinite divergence, by name and place, instead of returning inf and NaN gradients."""
    if math.isinf(cost) and dead.any():
        raise ValueError(f"{d.name} is infinite at {dead.nonzero()[0].tolist()}: {text}, {SUPPORT}")


def _inside(d: Divergence, log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Q f(P/Q) of every entry, from finite log-probs."""
    u = log_p - log_q
    if u.dtype != torch.float16 and u.numel() and u.detach().abs().max() < _MODERATE:
        return log_q.exp() * generator_of_log(d)(u)
    # Q f(t) where t <= 1 and P dual(1/t) where t > 1: the same number, and neither overflows
    low, high = u.clamp(max=0.0), u.clamp(min=0.0)
    below = log_q.exp() * generator_of_log(d)(low)
    above = log_p.exp() * generator_of_log(d, dual=True)(-high)
    return torch.where(u > 0, above, below)


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


def held_entries(
    inside: Callable[..., torch.Tensor], d: Divergence, log_p: torch.Tensor, log_q: torch.Tensor
) -> torch.Tensor:
    """``inside(d, log_p, log_q)``, and where that is not finite, `far_entries`."""
    found = inside(d, log_p, log_q)
    if found.detach().sum().isfinite():
        return found
    far = ~found.isfinite()
    near = inside(d, log_p.masked_fill(far, 0.0), log_q.masked_fill(far, 0.0))
    return near.masked_scatter(far, far_entries(d, log_p[far], log_q[far]))


def f_divergence(
    divergence: str | Divergence, logp_all: torch.Tensor, ref_logp_all: torch.Tensor
) -> torch.Tensor:
    """D_f(policy || reference) of every row, exact.

    Args:
        divergence: A registered name or a `Divergence`.
        logp_all: Normalized log-probs of the policy, [..., vocab].
        ref_logp_all: Normalized log-probs of the reference, the same shape.

    Returns:
        [...], differentiable in both arguments.

    Raises:
        ValueError: shapes differ, rows are not normalized, NaN, or the divergence is infinite.

    Source: emapg2026, eq (109).
    """
    d = get_divergence(divergence)
    check_distribution("logp_all", logp_all)
    check_shape("ref_logp_all", ref_logp_all, logp_all.shape, "logp_all [..., vocab]")
    check_distribution("ref_logp_all", ref_logp_all)
    return sum_of_entries(d, logp_all, ref_logp_all)


def sum_of_entries(d: Divergence, log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """sum_j Q_j f(P_j/Q_j) over the last axis, whatever entries stand there: [..., entries] -> [...].

    Entries may be -inf. An empty axis sums to 0.

    Raises:
        ValueError: the sum is infinite by a mask, or its entries overflow so that it would be NaN.
    """
    no_p, no_q = log_p.isneginf(), log_q.isneginf()
    if not (no_p.any() or no_q.any()):
        return refuse_nan(d.name, held_entries(_inside, d, log_p, log_q).sum(-1))
    at_zero, at_infinity = d.edges
    _check_support(d, no_p & ~no_q, at_zero, "the reference has probability where the policy has none")
    _check_support(d, no_q & ~no_p, at_infinity, "the policy has probability where the reference has none")
    both = ~no_p & ~no_q
    inside = held_entries(_inside, d, log_p.where(both, 0.0), log_q.where(both, 0.0)).where(both, 0.0).sum(-1)
    only_q = log_q.exp().where(no_p & ~no_q, 0.0).sum(-1)
    only_p = log_p.exp().where(no_q & ~no_p, 0.0).sum(-1)
    return refuse_nan(d.name, inside + _edge(at_zero, only_q) + _edge(at_infinity, only_p))


def _edge(cost: float, mass: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(mass) if math.isinf(cost) else mass * cost


@register_estimator("exact_kl", target="reverse_kl", source="tang2025pitfalls, eq (5)", inputs="vocab")
def exact_kl(logp_all: torch.Tensor, ref_logp_all: torch.Tensor) -> torch.Tensor:
    """KL(policy || reference) of every row: [..., vocab] -> [...]. See `f_divergence` for errors.

    Summed along sampled completions this is the Rao-Blackwellized estimator of the KL between two
    language models (amini2025better): the sampled log-ratio of every token is replaced by its expectation
    given the prefix. As a loss it has the token-level gradient; for that of whole sequences the value
    is also charged, detached, to the earlier tokens.
    """
    return f_divergence(DIVERGENCES["reverse_kl"], logp_all, ref_logp_all)


@register_estimator("exact_forward_kl", target="forward_kl", source="emapg2026, table 1", inputs="vocab")
def exact_forward_kl(logp_all: torch.Tensor, ref_logp_all: torch.Tensor) -> torch.Tensor:
    """KL(reference || policy) of every row: [..., vocab] -> [...]. See `f_divergence` for errors."""
    return f_divergence(DIVERGENCES["forward_kl"], logp_all, ref_logp_all)


def _member(text: str) -> Estimator:
    """The estimator ``f_divergence(pearson)``: exact, of any divergence."""
    d = get_divergence(text)
    return Estimator(
        f"f_divergence({d.name})", partial(f_divergence, d), d.name, "vocab", "emapg2026, eq (109)"
    )


ESTIMATOR_FAMILIES["f_divergence"] = _member
