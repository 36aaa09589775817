"""What is worked out per row between two readings, in float64, from the sums of its pieces."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kl_companion.divergences import Divergence, entries_of, stable_slope
from kl_companion.divergences.inline import expm1
from kl_companion.kernels.lanes import LOWEST, cooled, finite
from kl_companion.kernels.rows import lost, reference_base

ORDINARY = {torch.float64: 1e300, torch.float32: 1e30}  # what results stay below


class KLNumbers(NamedTuple):
    """What the gradient of the KL needs, [rows] each; kept for the backward pass."""

    peak: torch.Tensor  # the policy's largest logit
    base: torch.Tensor  # the reference's logit of this token
    mass: torch.Tensor  # sum of exp(x - peak); NaN marks a row of the careful path
    mean: torch.Tensor  # E_P of the differences y - x, less base - peak as computed


class RatioNumbers(NamedTuple):
    """The same for any other divergence; the mean comes from a second reading."""

    peak: torch.Tensor
    base: torch.Tensor
    mass: torch.Tensor
    shift: torch.Tensor  # the difference y - x where t = 1, rounded
    shift_rest: torch.Tensor  # what this rounding left out, over the temperature
    ref: torch.Tensor  # y where Q is 1/mass, rounded
    ref_rest: torch.Tensor
    slope: torch.Tensor  # f'(t) of the policy's likeliest token
    mean: torch.Tensor  # E_P f'(t), less this


_VANISHES = 40.0
MASS = KLNumbers._fields.index("mass")


def shares(peak: torch.Tensor, cool: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logit of rows, from the pieces' ``peak`` [rows, pieces], and exp(peak - it) in float64."""
    top = peak.amax(-1)
    return top, cooled(peak - top.unsqueeze(-1), cool).double().exp()


def less_one(
    below: torch.Tensor, at: torch.Tensor, peak: torch.Tensor, cool: torch.Tensor | None
) -> torch.Tensor:
    """Sum of exp(x - top) of rows less 1, float64, from the two parts of their pieces, [rows, pieces]."""
    top, share = shares(peak, cool)
    highest = peak == top.unsqueeze(-1)
    others = share * below + torch.where(highest, at.double() - 1, share * at)
    return others.sum(-1) + (highest.sum(-1) - 1)


class _Moved(NamedTuple):
    """Of rows: the likeliest token; of pieces: how far their own likeliest tokens are from it."""

    top: torch.Tensor  # [rows]
    base: torch.Tensor
    offset: torch.Tensor  # base - top, rounded
    rest: torch.Tensor  # what this rounding left out
    share: torch.Tensor  # [rows, pieces], exp(peak - top)
    ref_share: torch.Tensor  # exp(base - the row's)
    moved: torch.Tensor  # their difference y - x, less the row's
    total: torch.Tensor  # [rows], the policy's mass; NaN without a token


def _moved(peak: torch.Tensor, base: torch.Tensor, mass: torch.Tensor, cool: torch.Tensor | None) -> _Moved:
    top, share = shares(peak, cool)
    top_base = torch.where(peak == top.unsqueeze(-1), base, -float("inf")).amax(-1)
    pieces, row = base - peak, top_base - top
    rest = lost(top, top_base, row)
    moved = pieces.double() - row.double().unsqueeze(-1)
    moved = cooled(moved + (lost(peak, base, pieces) - rest.unsqueeze(-1)), cool)
    ref_share = cooled(base.double() - top_base.double().unsqueeze(-1), cool).exp()
    total = torch.where(top > LOWEST, (share * mass).sum(-1), torch.nan)
    return _Moved(top, top_base, row, rest, share, ref_share, moved, total)


def kl_numbers(
    peak: torch.Tensor,
    base: torch.Tensor,
    mass: torch.Tensor,
    moment: torch.Tensor,
    excess: torch.Tensor,
    cool: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL of rows and `KLNumbers`, stacked, from `first_sums` of pieces, [rows, pieces].

    The mean over P of e^z - 1 - z, never negative, is e^KL - 1. Each piece has measured differences from a
    token of its own; here they move to the mean of the row, where z is 0.
    """
    dtype = peak.dtype
    row = _moved(peak, base, mass, cool)
    share, drawn = row.share, row.share > 0
    mean = torch.where(drawn, share * (moment + mass * row.moved), 0.0).sum(-1) / row.total
    moved = row.moved - mean.unsqueeze(-1)
    grown = expm1(moved)
    in_excess = share * ((1 + grown) * excess + grown * moment + mass * (grown - moved))
    # of a piece that only the reference can draw
    alone = row.ref_share * (-mean).exp().unsqueeze(-1) * excess
    value = (torch.where(drawn, in_excess, alone).sum(-1) / row.total).log1p()
    numbers = KLNumbers(row.top, row.base, row.total, mean + cooled(row.rest, cool))
    return value.to(dtype), torch.stack([number.to(dtype) for number in numbers])


def ratio_numbers(
    peak: torch.Tensor,
    base: torch.Tensor,
    mass: torch.Tensor,
    growth: torch.Tensor,
    ref_mass: torch.Tensor,
    cool: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """`RatioNumbers` up to the slope; for it log t of the likeliest token, float64, and if it is masked."""
    dtype = peak.dtype
    masked = (torch.where(peak == peak.amax(-1, keepdim=True), base, -float("inf")) <= LOWEST).all(-1)
    row = _moved(peak, reference_base(finite(peak), base), mass, cool)
    grown = row.share * (row.moved.exp() * growth + expm1(row.moved) * mass)
    alone = row.ref_share * ref_mass - row.share * mass
    # a little more or less than the policy's mass, or another mass altogether
    less = torch.where((row.share > 0) & (row.moved.abs() < 1), grown, alone).sum(-1) / row.total
    ratio = (row.ref_share * ref_mass).sum(-1) / row.total
    likeliest = torch.where(less.abs() < 0.5, less.log1p(), ratio.log())
    by_logit = likeliest if cool is None else likeliest / cool.double()
    split = []
    for start, rest in ((row.offset, by_logit + row.rest), (row.base, by_logit)):
        rounded = (start + rest).to(dtype)
        split += [rounded, cooled((start - rounded.double()) + rest, cool).to(dtype)]
    base = torch.where(masked, LOWEST, row.base)
    # measured from the policy's logit, a reference far from it vanishes
    total = torch.where(masked & (likeliest.abs() > _VANISHES), torch.nan, row.total)
    return row.top, base, total.to(dtype), *split, likeliest, masked


def fill_ratio_numbers(d: Divergence, kept: torch.Tensor, found: tuple[torch.Tensor, ...]) -> None:
    """Fill [numbers, rows], `RatioNumbers` up to the mean, from `ratio_numbers`."""
    *numbers, likeliest, masked = found
    slope = torch.where(masked, entries_of(d).at_infinity, stable_slope(d, likeliest))
    kept[:-1] = torch.stack([*numbers, slope.to(kept.dtype)])


def value_and_mean(
    kept: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """D_f of rows from the sums of their pieces, and which rows are done; the mean in ``kept`` is filled."""
    value, kept[-1] = (part.sum(-1, dtype=torch.float64) / kept[MASS] for part in (values, slopes))
    limit = ORDINARY[kept.dtype]
    return value.to(kept.dtype), (value < limit) & (kept[-1].abs() < limit)
