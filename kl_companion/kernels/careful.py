"""Rows that the kernels cannot do in their dtype: in float64, for every f and every mask, or refused by name.

A row comes here when its result is not finite. Either the input is the reason, which is said with its place,
or the divergence is infinite, or a ratio left float32 and float64 still holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from kl_companion.divergences import SUPPORT, Divergence, entries_of
from kl_companion.divergences.inline import series_at
from kl_companion.estimators.vocabulary import far_entries
from kl_companion.kernels.lanes import cooled, load, past_cap
from kl_companion.kernels.ratios import NEAR

if TYPE_CHECKING:
    from kl_companion.kernels.walks import How


class RowIndex(NamedTuple):
    """Turns the number of a row into its place in the leading axes; ``first`` is the number of row 0."""

    lead: torch.Size
    first: int = 0

    def __call__(self, row: int) -> list[int]:
        """Indices of a row."""
        at = torch.unravel_index(torch.tensor(self.first + row), self.lead) if self.lead else ()
        return [int(i) for i in at]


class Careful(NamedTuple):
    """What was found: value [rows], gradient [rows, vocab] by the raw logits."""

    value: torch.Tensor
    gradient: torch.Tensor


def careful_rows(
    d: Divergence,
    x_raw: torch.Tensor,
    y_raw: torch.Tensor,
    bad: torch.Tensor,
    how: How,
    row_index: RowIndex,
    start: int,
    dtype: torch.dtype,
) -> Careful:
    """Rows ``bad`` of a block that starts at ``start``, in float64, rounded to ``dtype``.

    Raises:
        ValueError: NaN, +inf or only -inf in a row, an infinite divergence, a value beyond ``dtype``.
    """
    cool, cap, ref_cap = how.scalars(torch.float64)
    x, y = load(x_raw[bad], torch.float64, cap), load(y_raw[bad], torch.float64, ref_cap)
    general = general_rows(d, cooled(x, cool), cooled(y, cool))
    value = general.value.to(dtype)
    at = [start + int(row) for row in bad]
    check_finite(d.name, value, {"logits": x, "ref_logits": y}, row_index, at)
    _check_support(d, general.only_policy, general.only_reference, row_index, at)
    return Careful(value, past_cap(cooled(general.gradient, cool), x, cap).to(dtype))


def _check_support(
    d: Divergence,
    only_policy: torch.Tensor,
    only_reference: torch.Tensor,
    row_index: RowIndex,
    at: list[int],
) -> None:
    for cost, where, who, other in (
        (d.at_infinity, only_policy, "policy", "reference"),
        (d.at_zero, only_reference, "reference", "policy"),
    ):
        if not cost.is_finite and where.any():
            row, token = where.nonzero()[0].tolist()
            raise ValueError(
                f"{d.name} is infinite at {[*row_index(at[row]), token]}: the {who} has probability "
                f"where the {other} has none, {SUPPORT}"
            )


def check_finite(
    what: str, found: torch.Tensor, raw: dict[str, torch.Tensor], row_index: RowIndex, at: list[int]
) -> None:
    """ValueError that names the reason and the place where a result is not finite; ``at`` counts rows."""
    good = found.isfinite()
    if good.all():
        return
    for name, x in raw.items():
        for says, bad in (
            ("is NaN", x.isnan()),
            ("is +inf", x.isposinf()),
            ("is -inf for every token", x.isneginf().all(-1, keepdim=True)),
        ):
            if bad.any():
                where = row_index(at[int(bad.any(-1).nonzero()[0])])
                raise ValueError(f"{name} {says} at {where}: expected finite numbers, -inf where masked")
    where = row_index(at[int((~good).nonzero()[0, 0])])
    raise ValueError(f"{what} at {where} is beyond {found.dtype}: its largest ratios overflow")


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
