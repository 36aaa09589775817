"""Rows that the kernels cannot do in their dtype: in float64, for every f and every mask.

A row comes here when its result is not finite. Either the input is the reason, or the divergence is infinite,
or a ratio left float32 and float64 still holds it. `refusal` names the reason and the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from kl_companion.divergences import SUPPORT, Divergence, entries_of
from kl_companion.divergences.inline import series_at
from kl_companion.estimators.vocabulary import far_entries
from kl_companion.kernels.lanes import cooled, load, past_cap
from kl_companion.kernels.ratios import NEAR

if TYPE_CHECKING:
    from kl_companion.kernels.logit_transform import LogitTransform


class Careful(NamedTuple):
    """What was found: value [rows], gradient [rows, vocab] by the raw logits."""

    value: torch.Tensor
    gradient: torch.Tensor


def careful_rows(
    d: Divergence, x_raw: torch.Tensor, y_raw: torch.Tensor, how: LogitTransform, dtype: torch.dtype
) -> Careful:
    """Rows [rows, vocab] in float64, rounded to ``dtype``.

    NaN, +inf or only -inf in a row make it NaN; where a mask makes the divergence infinite, so is the value,
    and the gradient is NaN.
    """
    cool, cap, ref_cap = how.scalars(torch.float64)
    x, y = how.comparable(x_raw, y_raw, torch.float64)
    x, y = load(x, torch.float64, cap), load(y, torch.float64, ref_cap)
    general = general_rows(d, cooled(x, cool), cooled(y, cool))
    infinite = torch.zeros_like(general.value, dtype=torch.bool)
    for cost, only in ((d.at_infinity, general.only_policy), (d.at_zero, general.only_reference)):
        if not cost.is_finite:
            infinite |= only.any(-1)
    value = general.value.masked_fill(infinite & ~general.value.isnan(), torch.inf)
    gradient = past_cap(cooled(general.gradient, cool), x, cap)
    return Careful(value.to(dtype), gradient.masked_fill(infinite.unsqueeze(-1), torch.nan).to(dtype))


def refusal(
    what: str | Divergence, row: dict[str, torch.Tensor], at: list[int], dtype: torch.dtype
) -> ValueError:
    """The error for a row whose result is not finite, with the reason and the place.

    Args:
        what: The result: a divergence, or its name in words.
        row: Logits of the row, [vocab] each, by the name of their argument.
        at: Where the row stands in the leading axes.
        dtype: The dtype of the result.
    """
    for name, x in row.items():
        for says, bad in (
            ("is NaN", x.isnan().any()),
            ("is +inf", x.isposinf().any()),
            ("is -inf for every token", x.isneginf().all()),
        ):
            if bad:
                return ValueError(f"{name} {says} at {at}: expected finite numbers, -inf where masked")
    if isinstance(what, Divergence):
        no_p, no_q = (x.isneginf() for x in row.values())
        for cost, only, who, other in (
            (what.at_infinity, ~no_p & no_q, "policy", "reference"),
            (what.at_zero, no_p & ~no_q, "reference", "policy"),
        ):
            if not cost.is_finite and only.any():
                return ValueError(
                    f"{what.name} is infinite at {[*at, int(only.nonzero()[0])]}: the {who} has probability "
                    f"where the {other} has none, {SUPPORT}"
                )
        what = what.name
    return ValueError(f"{what} at {at} is beyond {dtype}: its largest ratios overflow")


def first_bad(values: torch.Tensor) -> list[int] | None:
    """Indices of the first value that is not finite, None without one: one read of the device then."""
    good = values.detach().isfinite()
    if good.is_meta or bool(good.all()):
        return None
    return [int(i) for i in (~good).nonzero()[0]]


def place(row: int, lead: torch.Size) -> list[int]:
    """Indices in the leading axes of a row that is numbered across them."""
    return [int(i) for i in torch.unravel_index(torch.tensor(row), lead)] if lead else []


def refuse_tokens(
    logp: torch.Tensor, tokens: torch.Size, lead: torch.Size, logits_of: Callable[[int], torch.Tensor]
) -> None:
    """Raise ValueError for the first log-prob [rows, k] that is not finite.

    Args:
        logp: Log-probs of tokens.
        tokens: The shape of the ids, [...] or [..., k].
        lead: The leading axes, [...].
        logits_of: Returns the logits [vocab] of a row.
    """
    at = first_bad(logp)
    if at is None:
        return
    where = place(at[0], lead)
    if logp[tuple(at)].isneginf():
        where += at[1:] if len(tokens) > len(lead) else []
        raise ValueError(
            f"the token at {where} of tokens is masked (-inf), expected a token that the policy can draw"
        )
    raise refusal("log-prob", {"logits": logits_of(at[0])}, where, logp.dtype)


class General(NamedTuple):
    """What `general_rows` found: value [rows], gradient [rows, vocab], and where a row is no distribution."""

    value: torch.Tensor
    gradient: torch.Tensor
    only_policy: torch.Tensor  # [rows, vocab], tokens that the policy alone can draw
    only_reference: torch.Tensor


def general_rows(d: Divergence, x: torch.Tensor, y: torch.Tensor) -> General:
    """D_f and its gradient by x, for any finite or masked float64 logits [rows, vocab], without scratch.

    Every entry is computed from the larger of its two probabilities, so that no power of t overflows where
    the product does not; of tokens that neither can draw in float64 (log-prob below -745) those count nothing
    whose ratio has no infinite power either.
    """
    p, q = x.softmax(-1), y.softmax(-1)
    no_p, no_q = x.isneginf(), y.isneginf()
    both = ~(no_p | no_q)
    tops = [row.amax(-1, keepdim=True) for row in (x, y, p, q)]
    normalizers = tops[2].log() - tops[3].log()  # log t = log P - log Q, each its logit less a normalizer
    u = ((x - tops[0]) - (y - tops[1]) + normalizers).where(both, 0.0)
    only_p, only_q = p.where(no_q, 0.0), q.where(no_p, 0.0).sum(-1)
    above, entries = u > 0, entries_of(d)
    of, larger = entries.of_larger(-u.abs()), torch.where(above, p, q)
    alive, of_larger = both & (larger != 0), torch.where(above, of.value_above, of.value_below)
    terms = (larger * of_larger).where(alive, 0.0)
    field = (larger * torch.where(above, of.slope_above, of.slope_below)).where(alive, 0.0)
    if entries.series is not None:
        near = both & (u.abs() < NEAR[torch.float64])
        terms = torch.where(near, p * u * u * series_at(entries.series, u), terms)
    value = terms.sum(-1)
    far = both & ~alive & ~of_larger.isfinite()
    if far.any():  # masses of 0, but a ratio whose power may be larger still
        log_p, log_q = (a - top + p_top.log() for a, top, p_top in zip((x, y), tops, tops[2:], strict=False))
        at = log_p[far], log_q[far]
        value = value + torch.zeros_like(field).masked_scatter(far, far_entries(d, *at)).sum(-1)
        field = field.masked_scatter(far, far_entries(d, *at, slope=True))
    if d.at_zero.is_finite:
        value = value + float(d.at_zero) * only_q
    if d.at_infinity.is_finite:
        value = value + float(d.at_infinity) * only_p.sum(-1)
        field = field + float(d.at_infinity) * only_p
    peak = p.argmax(-1, keepdim=True)  # from the field of the likeliest token: exact where P is near 1
    field = field - p * (field.gather(-1, peak) / tops[2])
    gradient = field - p * field.sum(-1, keepdim=True)
    value = value + 0 * (p.sum(-1) + q.sum(-1))  # NaN where a row is no distribution
    return General(value, gradient, ~no_p & no_q, no_p & ~no_q)
