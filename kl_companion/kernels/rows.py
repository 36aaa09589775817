"""The first reading of rows of raw logits and the gradient of the KL: the one definition, eager or compiled.

For logits x of policy P and y of reference Q, z = (y - x) - E_P[y - x] is log(Q/P) up to a constant, and
log t = log(P/Q) = log E_P[e^z] - z.

`first_sums` reads a row, and `kl_companion.kernels.row_numbers` works a few numbers per row out of its sums
in float64. That gives the KL, and `kl_gradient` writes its gradient; any other divergence needs the readings
of `kl_companion.kernels.ratios`. Nothing here decides by what it finds, so that PyTorch's compiler makes one
loop of each reading; `kl_companion.kernels.walks` calls them block by block.

What would cancel is written so that it does not: differences y - x keep the digits that their rounding loses
and are measured from where they matter, from the policy's likeliest token for the KL, from t = 1 for the
others. A result that is no ordinary number marks a row for `kl_companion.kernels.careful`.
"""

from __future__ import annotations

import torch

from kl_companion.divergences.inline import exp_and_excess, largest
from kl_companion.kernels.lanes import (
    LOWEST,
    PAIRS,
    added,
    cooled,
    finite,
    load_lanes,
    of_peak,
    past_cap,
    store,
)

# |D| below which the power series of e^D - 1 - D is more accurate
_NEAR_EXCESS = {torch.float64: 0.05, torch.float32: 0.75}
_INF = float("inf")


def lost(x: torch.Tensor, y: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """What the rounding of y - x lost."""
    back = y - difference
    return (y - (difference + back)) + (back - x)


def differences(x: torch.Tensor, y: torch.Tensor, offset: torch.Tensor, exact: bool) -> torch.Tensor:
    """(y - x) - offset, rounded once; offset is [rows]. ``exact``: y - x needs no rounding."""
    difference = y - x
    rest = difference - offset.unsqueeze(-1)
    return rest if exact else rest + lost(x, y, difference)


def is_exact(x_raw: torch.Tensor, *caps: torch.Tensor | None) -> bool:
    """Whether differences are exact: numbers of eight digits in a dtype of 24."""
    return x_raw.dtype in (PAIRS, torch.bfloat16) and all(cap is None for cap in caps)


def reference_base(peak: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """``base``, or what stands for it where the reference has masked the policy's likeliest token."""
    return torch.where(base > LOWEST, base, peak)


def first_sums(
    x_raw: torch.Tensor,
    y_raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    ref_cap: torch.Tensor | None,
    *,
    dtype: torch.dtype,
    kl: bool,
) -> tuple[torch.Tensor, ...]:
    """Sums of a first reading of pieces of rows, [pieces, length], short enough to stay in the cache.

    peak and base, the reference's logit there. With e = exp(x - peak), the difference D = (y - x) less that
    of the likeliest token, and r = exp(y - base): the sums of e, and for the ``kl`` of e D and
    e (e^D - 1 - D), for others of r - e and r. r is e e^D.
    """
    pairs = [*zip(load_lanes(x_raw, dtype, cap), load_lanes(y_raw, dtype, ref_cap), strict=True)]
    exact = is_exact(x_raw, cap, ref_cap)
    peak = largest([x for x, _ in pairs])
    base = largest([torch.where(x == peak.unsqueeze(-1), y, -_INF) for x, y in pairs])
    top = finite(peak)
    at = finite(base) if kl else reference_base(top, base)
    offset = at - top
    of_base = lost(top, at, offset).unsqueeze(-1)  # so that D of the likeliest token is exactly 0
    sums = []
    for x, y in pairs:
        e = of_peak(x, top, cool)
        d = cooled(differences(x, y, offset, exact) - (0.0 if exact else of_base), cool)
        near = d.abs() < _NEAR_EXCESS[dtype]
        if kl:
            d = torch.where(x == -_INF, 0.0, d)
        from_base = (y if exact or kl else finite(y)) - at.unsqueeze(-1)
        far, excess = exp_and_excess(cooled(from_base, cool), d, near)
        moment = e * d
        if kl:
            excess = torch.where(near, moment * d * excess, far - (e + moment))
            sums.append((e.sum(-1), moment.sum(-1), excess.sum(-1)))
        else:
            if not exact:  # far from the base its rounding counts
                far = far + far * cooled(lost(at.unsqueeze(-1), finite(y), from_base), cool)
            growth = moment + moment * d * excess
            r = torch.where(near, e + growth, far)
            sums.append((e.sum(-1), torch.where(near, growth, far - e).sum(-1), r.sum(-1)))
    return peak, base, *map(added, zip(*sums, strict=True))


def kl_gradient(
    x_raw: torch.Tensor,
    y_raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    ref_cap: torch.Tensor | None,
    peak: torch.Tensor,
    base: torch.Tensor,
    mean: torch.Tensor,
    factor: torch.Tensor,
    out: torch.Tensor | None,
    *,
    dtype: torch.dtype,
) -> None:
    """Write factor exp(x - peak) z, the gradient of the KL, to ``out``, or over ``x_raw``."""
    exact = is_exact(x_raw, cap, ref_cap)
    found = []
    for x, y in zip(load_lanes(x_raw, dtype, cap), load_lanes(y_raw, dtype, ref_cap), strict=True):
        z = cooled(differences(x, y, base - peak, exact), cool) - mean.unsqueeze(-1)
        z = torch.where(x == -_INF, 0.0, z)
        found.append(past_cap(of_peak(x, peak, cool) * (z * factor.unsqueeze(-1)), x, cap))
    store(x_raw if out is None else out, found)
