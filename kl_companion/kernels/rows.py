"""Divergences of rows of raw logits and their gradients: the one definition, run eagerly or compiled.

For logits x of policy P and y of reference Q, z = (y - x) - E_P[y - x] is log(Q/P) up to a constant, and
log t = log(P/Q) = log E_P[e^z] - z. The gradient of D_f(P || Q) by x is P (f'(t) - E_P f'(t)).

`first_sums` reads a row, and a few numbers per row are worked out of its sums in float64. That gives the KL,
and `kl_gradient` writes its gradient; for any other divergence `divergence_rows` reads the row once more.
Nothing here decides by what it finds, so that PyTorch's compiler makes one loop of each reading;
`kl_companion.kernels.walks` calls them block by block.

What would cancel is written so that it does not. Differences y - x keep the digits that their rounding loses
and are measured from that of the policy's likeliest token. Next to P = Q a power series without constant (and
for the value without linear) term takes over. Elsewhere every entry is computed from the larger of its two
probabilities, so that no power of t overflows where the entry does not. A result that is no ordinary number
marks a row for `kl_companion.kernels.careful`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kl_companion.divergences import Divergence, Entries, entries_of, stable_slope
from kl_companion.kernels.inline import exp, largest

NEAR = {torch.float64: 0.05, torch.float32: 0.5}  # |log t| below which the power series is more accurate
_INF = float("inf")
ORDINARY = {torch.float64: 1e300, torch.float32: 1e30}  # what results stay below
# (e^z - 1 - z) / z^2
_EXCESS = (1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320, 1 / 362880)


def load(raw: torch.Tensor, dtype: torch.dtype, cap: torch.Tensor | None) -> torch.Tensor:
    """Logits in the dtype that is worked in, past the model's soft cap where it has one."""
    x = raw.to(dtype)
    return x if cap is None else cap * torch.tanh(x / cap)


def past_cap(gradient: torch.Tensor, loaded: torch.Tensor, cap: torch.Tensor | None) -> torch.Tensor:
    """The gradient by raw logits from that by the loaded ones."""
    return gradient if cap is None else gradient * (1 - (loaded / cap).square())


def cooled(scaled: torch.Tensor, cool: torch.Tensor | None) -> torch.Tensor:
    """Logits over the temperature; ``cool`` is one over it, None where it is 1."""
    return scaled if cool is None else scaled * cool


def _lost(x: torch.Tensor, y: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """What the rounding of y - x lost."""
    back = y - difference
    return (y - (difference + back)) + (back - x)


def _differences(x: torch.Tensor, y: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """(y - x) - offset, rounded once; offset is [rows]."""
    difference = y - x
    return (difference - offset.unsqueeze(-1)) + _lost(x, y, difference)


def series_at(coefficients: tuple[float, ...], u: torch.Tensor) -> torch.Tensor:
    """A polynomial in u, lowest coefficient first."""
    total = torch.full_like(u, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * u + c
    return total


class RowNumbers(NamedTuple):
    """What the second reading of a row needs, [rows] each; kept for the backward pass."""

    peak: torch.Tensor  # the policy's largest logit
    offset: torch.Tensor  # the difference y - x of this token, as computed
    mass: torch.Tensor  # sum of exp(x - peak); NaN marks a row of the careful path
    at_peak: (
        torch.Tensor
    )  # for the KL the mean of the differences, and it needs no more; else log t where one is 0
    ref_peak: torch.Tensor  # the reference's largest logit
    ref_shift: torch.Tensor  # what y - ref_peak still needs to be the logarithm of mass times Q
    slope: torch.Tensor  # f'(t) of the policy's likeliest token


def first_sums(
    x_raw: torch.Tensor,
    y_raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    ref_cap: torch.Tensor | None,
    *,
    dtype: torch.dtype,
    mean: bool,
) -> tuple[torch.Tensor, ...]:
    """Sums of a first reading of pieces of rows, [pieces, length], short enough to stay in the cache.

    peak and the reference's logit there; then, with ``mean``, the sums of exp(x - peak) times 1, times the
    difference D and times e^D - 1 - D; without it both masses, each in two parts, that of the tokens below
    the largest logit and that of those at it, and the reference's largest logit.
    """
    x, y = load(x_raw, dtype, cap), load(y_raw, dtype, ref_cap)
    peak = largest(x)
    base = largest(torch.where(x == peak.unsqueeze(-1), y, -_INF))
    e = exp(cooled(x - peak.unsqueeze(-1), cool))
    if mean:
        of_base = _lost(peak, base, base - peak).unsqueeze(
            -1
        )  # so that the difference at the peak is exactly 0
        found = cooled(_differences(x, y, base - peak) - of_base, cool)
        differences = torch.where(x == -_INF, 0.0, found)
        far = exp(cooled(y - base.unsqueeze(-1), cool), bounded=False) - e * (1 + differences)
        near = e * (differences * differences * series_at(_EXCESS, differences))
        excess = torch.where(found.abs() < NEAR[dtype], near, far)
        return peak, base, e.sum(-1), (e * differences).sum(-1), excess.sum(-1)
    ref_peak = largest(y)
    ref_e = exp(cooled(y - ref_peak.unsqueeze(-1), cool))
    return (
        peak,
        base,
        *two_parts(e, x < peak.unsqueeze(-1)),
        *two_parts(ref_e, y < ref_peak.unsqueeze(-1)),
        ref_peak,
    )


def two_parts(e: torch.Tensor, below: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over the last axis: of what is below the largest, and of the rest."""
    return torch.where(below, e, 0.0).sum(-1), torch.where(below, 0.0, e).sum(-1)


def shares(peak: torch.Tensor, cool: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logit of rows, from the pieces' ``peak`` [rows, pieces], and exp(peak - it) in float64."""
    top = peak.amax(-1)
    return top, cooled(peak - top.unsqueeze(-1), cool).double().exp()


def less_one(
    below: torch.Tensor, at: torch.Tensor, peak: torch.Tensor, cool: torch.Tensor | None
) -> torch.Tensor:
    """Sum of exp(x - top) of rows less 1, float64, from `two_parts` of their pieces, [rows, pieces]."""
    top, share = shares(peak, cool)
    highest = peak == top.unsqueeze(-1)
    others = share * below + torch.where(highest, at.double() - 1, share * at)
    return others.sum(-1) + (highest.sum(-1) - 1)


def _base_of(peak: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    return torch.where(peak == peak.amax(-1, keepdim=True), base, -_INF).amax(-1)


def kl_numbers(
    peak: torch.Tensor,
    base: torch.Tensor,
    mass: torch.Tensor,
    moment: torch.Tensor,
    excess: torch.Tensor,
    cool: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL of rows and `RowNumbers`, stacked, from `first_sums` of pieces, [rows, pieces].

    The mean over P of e^z - 1 - z, never negative, is e^KL - 1. Each piece has measured differences from a
    token of its own; here they move, in float64, to the mean of the row, where z is 0.
    """
    dtype = peak.dtype
    top, share = shares(peak, cool)
    top_base = _base_of(peak, base)
    exact = top_base.double() - top.double()
    total = (share * mass).sum(-1)
    moved = cooled(base.double() - peak.double() - exact.unsqueeze(-1), cool)
    mean = torch.where(share > 0, share * (moment + mass * moved), 0.0).sum(-1) / total
    moved = moved - mean.unsqueeze(-1)
    grown = moved.expm1()
    in_excess = share * ((1 + grown) * excess + grown * moment + mass * (grown - moved))
    # of a piece that only the reference can draw
    apart = cooled(base.double() - top_base.double().unsqueeze(-1), cool) - mean.unsqueeze(-1)
    in_excess = torch.where(share > 0, in_excess, apart.exp() * excess)
    value = (in_excess.sum(-1) / total).log1p()
    offset = top_base - top
    numbers = top, offset, total, mean + cooled(exact - offset.double(), cool), total, total, total
    return value.to(dtype), torch.stack([number.to(dtype) for number in numbers])


def general_numbers(
    peak: torch.Tensor,
    base: torch.Tensor,
    below: torch.Tensor,
    at: torch.Tensor,
    ref_below: torch.Tensor,
    ref_at: torch.Tensor,
    ref_peak: torch.Tensor,
    cool: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """`RowNumbers` but the slope; for it log t of the likeliest token, float64, and whether it is masked."""
    dtype = peak.dtype
    top, ref_top = peak.amax(-1), ref_peak.amax(-1)
    others, ref_others = less_one(below, at, peak, cool), less_one(ref_below, ref_at, ref_peak, cool)
    found = _base_of(peak, base)
    masked = found == -_INF
    found = torch.where(masked, ref_top, found)
    offset, log_masses = found - top, others.log1p() - ref_others.log1p()
    of_likeliest = cooled(ref_top.double() - found.double(), cool) - log_masses
    at_offset = of_likeliest + cooled(_lost(top, found, offset).double(), cool)
    numbers = (1 + others).to(dtype), at_offset.to(dtype), ref_top, log_masses.to(dtype)
    return top, offset, *numbers, of_likeliest, masked


def slope_of_likeliest(d: Divergence, of_likeliest: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """f'(t) of the policy's likeliest token, float64 [rows]."""
    return torch.where(masked, entries_of(d).at_infinity, stable_slope(d, of_likeliest))


def kl_gradient(
    x_raw: torch.Tensor,
    y_raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    ref_cap: torch.Tensor | None,
    peak: torch.Tensor,
    offset: torch.Tensor,
    mean: torch.Tensor,
    factor: torch.Tensor,
    out: torch.Tensor | None,
    *,
    dtype: torch.dtype,
) -> None:
    """Write factor exp(x - peak) z, the gradient of the KL, to ``out``, or over ``x_raw``."""
    x, y = load(x_raw, dtype, cap), load(y_raw, dtype, ref_cap)
    e = exp(cooled(x - peak.unsqueeze(-1), cool))
    z = torch.where(x == -_INF, 0.0, cooled(_differences(x, y, offset), cool) - mean.unsqueeze(-1))
    (x_raw if out is None else out).copy_(past_cap(e * z * factor.unsqueeze(-1), x, cap))


def divergence_rows(
    x_raw: torch.Tensor,
    y_raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    ref_cap: torch.Tensor | None,
    peak: torch.Tensor,
    offset: torch.Tensor,
    at_peak: torch.Tensor,
    ref_peak: torch.Tensor,
    ref_shift: torch.Tensor,
    slope: torch.Tensor,
    *,
    entries: Entries,
    dtype: torch.dtype,
    fields: bool,
) -> tuple[torch.Tensor, ...]:
    """Any D_f(P || Q): sums [rows] of the values and of P (f'(t) - slope), both multiplied by mass.

    With ``fields`` P (f'(t) - slope) and P too, [rows, vocab], as gradients by the raw logits.

    Args:
        x_raw: Raw logits of the policy, [rows, vocab].
        y_raw: Of the reference.
        cool: One over the temperature, or None.
        cap: Soft cap of the policy.
        ref_cap: Of the reference.
        peak: See `RowNumbers`; so all that follow.
        offset: [rows].
        at_peak: [rows].
        ref_peak: [rows].
        ref_shift: [rows].
        slope: [rows].
        entries: Of the divergence.
        dtype: That is worked in.
        fields: Whether they are wanted.
    """
    x, y = load(x_raw, dtype, cap), load(y_raw, dtype, ref_cap)
    scaled = cooled(x - peak.unsqueeze(-1), cool)
    ref_scaled = cooled(y - ref_peak.unsqueeze(-1), cool) + ref_shift.unsqueeze(-1)
    apart = (ref_peak - (peak + offset) > 1).unsqueeze(-1)  # far rows: no difference is small
    differences = at_peak.unsqueeze(-1) - cooled(_differences(x, y, offset), cool)
    u = torch.where(apart, scaled - ref_scaled, differences)  # log t
    no_p, no_q = x == -_INF, y == -_INF
    rarer = no_p | ((u < 0) & ~no_q)  # the policy has less than the reference
    e = exp(scaled)
    larger = exp(torch.where(rarer, ref_scaled, scaled))
    down = -u.abs()
    values = larger * torch.where(rarer, entries.below.value(down), entries.above.value(down))
    slopes = larger * torch.where(rarer, entries.below.slope(down), entries.above.slope(down))
    if entries.series is not None:
        near = down > -NEAR[dtype]
        values = torch.where(near, e * (u * u * series_at(entries.series.value, u)), values)
        slopes = torch.where(near, e * (u * series_at(entries.series.slope, u)), slopes)
    values = torch.where(no_q, entries.at_infinity * e, torch.where(no_p, entries.at_zero * larger, values))
    values = torch.where(no_p & no_q, 0.0, values)
    slopes = torch.where(no_q, entries.at_infinity * e, slopes)
    likeliest = (x == peak.unsqueeze(-1)) & (y - x == offset.unsqueeze(-1))
    slopes = torch.where(likeliest | no_p, 0.0, slopes - e * slope.unsqueeze(-1))
    sums = values.sum(-1), slopes.sum(-1)
    return (*sums, past_cap(slopes, x, cap), past_cap(e, x, cap)) if fields else sums


def combine(
    slopes: torch.Tensor, p: torch.Tensor, mean: torch.Tensor, factor: torch.Tensor, out: torch.Tensor
) -> None:
    """Write factor times (slopes - p mean), the gradient from the fields of `divergence_rows`, to ``out``."""
    out.copy_((slopes - p * mean.unsqueeze(-1)) * factor.unsqueeze(-1))
