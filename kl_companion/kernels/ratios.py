"""Any divergence of rows of raw logits and its gradient, from a reading each: run eagerly or compiled.

The gradient of D_f(P || Q) by the policy's logits is P (f'(t) - E_P f'(t)), t = P/Q. Every entry is computed
from the larger of its two probabilities, so that no power of t overflows where the entry does not. Slopes are
measured from that of the likeliest token; next to P = Q a power series without constant and linear term takes
over where values need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kl_companion.divergences import Entries
from kl_companion.divergences.compiled import OfLarger
from kl_companion.divergences.inline import exp, series_at
from kl_companion.kernels.lanes import added, both_finite, cooled, load_lanes, past_cap, store
from kl_companion.kernels.row_numbers import RatioNumbers
from kl_companion.kernels.rows import differences, is_exact

# |log t| below which the power series of f is more accurate
NEAR = {torch.float64: 0.05, torch.float32: 0.5}


class _Ratios(NamedTuple):
    """A lane of entries seen from the larger of their two probabilities."""

    u: torch.Tensor  # log t
    down: torch.Tensor  # -|log t|
    below: torch.Tensor  # where the policy has less than the reference
    larger: torch.Tensor  # the larger probability times mass
    of: OfLarger
    e: torch.Tensor  # P times mass
    slopes: torch.Tensor  # P (f'(t) - slope) times mass


def _ratios(
    x_raw: torch.Tensor,
    y_raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    ref_cap: torch.Tensor | None,
    numbers: RatioNumbers,
    entries: Entries,
    dtype: torch.dtype,
) -> Iterator[tuple[torch.Tensor, _Ratios]]:
    """Per lane the policy's logits, and the entries."""
    of = RatioNumbers(*(number.unsqueeze(-1) for number in numbers))
    exact, edges = is_exact(x_raw, cap, ref_cap), {"no_p": entries.at_zero, "no_q": entries.at_infinity}
    may_mask = {name: edge < float("inf") for name, edge in edges.items()}
    for raw_x, raw_y in zip(load_lanes(x_raw, dtype, cap), load_lanes(y_raw, dtype, ref_cap), strict=True):
        x, y = both_finite(raw_x, raw_y, **may_mask)
        u = of.shift_rest - cooled(differences(x, y, numbers.shift, exact), cool)
        below = u < 0
        ref_scaled = cooled(y - of.ref, cool) - of.ref_rest
        larger = exp(torch.where(below, ref_scaled, cooled(x - of.peak, cool)))
        down = -u.abs()
        seen = entries.of_larger(down)
        e = torch.where(below, larger * seen.ratio, larger)
        slopes = larger * torch.where(below, seen.slope_below, seen.slope_above) - e * of.slope
        of_likeliest = torch.where(y == of.base, 0.0, slopes)
        slopes = torch.where(x == of.peak, of_likeliest, slopes)
        yield raw_x, _Ratios(u, down, below, larger, seen, e, slopes)


def divergence_sums(
    x_raw: torch.Tensor,
    y_raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    ref_cap: torch.Tensor | None,
    *numbers: torch.Tensor,
    entries: Entries,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Any D_f(P || Q): sums [rows] of the values and of P (f'(t) - slope), both multiplied by mass.

    Args:
        x_raw: Raw logits of the policy, [rows, vocab].
        y_raw: Of the reference.
        cool: One over the temperature, or None.
        cap: Soft cap of the policy.
        ref_cap: Of the reference.
        numbers: `RatioNumbers`, [rows] each; their mean is not looked at.
        entries: Of the divergence.
        dtype: That is worked in.
    """
    given, sums = (cool, cap, ref_cap, RatioNumbers(*numbers), entries, dtype), []
    for _, seen in _ratios(x_raw, y_raw, *given):
        value = seen.larger * torch.where(seen.below, seen.of.value_below, seen.of.value_above)
        if entries.series is not None:
            series = enough(entries.series, NEAR[dtype], torch.finfo(dtype).eps)
            near = seen.e * (seen.u * seen.u * series_at(series, seen.u))
            value = torch.where(seen.down > -NEAR[dtype], near, value)
        sums.append((value.sum(-1), seen.slopes.sum(-1)))
    values, slopes = map(added, zip(*sums, strict=True))
    return values, slopes


def enough(series: tuple[float, ...], near: float, eps: float) -> tuple[float, ...]:
    """The first terms of a power series, those whose size up to ``near`` is not lost in rounding."""
    count = max(n for n, c in enumerate(series) if abs(c) * near**n > eps / 8 * abs(series[0]))
    return series[: count + 1]


def divergence_gradient(
    x_raw: torch.Tensor,
    y_raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    ref_cap: torch.Tensor | None,
    factor: torch.Tensor,
    out: torch.Tensor | None,
    *numbers: torch.Tensor,
    entries: Entries,
    dtype: torch.dtype,
) -> None:
    """Write factor P (f'(t) - E_P f'(t)) times mass, the gradient, to ``out``, or over ``x_raw``."""
    of, found = RatioNumbers(*numbers), []
    for x, seen in _ratios(x_raw, y_raw, cool, cap, ref_cap, of, entries, dtype):
        entry = (seen.slopes - seen.e * of.mean.unsqueeze(-1)) * factor.unsqueeze(-1)
        found.append(past_cap(entry, x, cap))
    store(x_raw if out is None else out, found)
