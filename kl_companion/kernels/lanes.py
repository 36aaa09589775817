"""How raw logits become numbers to work with, and numbers become logits again.

A tensor of int32 holds pairs of bfloat16 numbers: of those PyTorch's compiler would make loops over two
registers at a time that it keeps putting away. Each half of the pairs is a *lane*, worked on like a tensor of
its own; any other dtype has one lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch

from kl_companion.divergences.inline import exp

PAIRS = torch.int32
LOWEST = -1e30  # stands for -inf where a probability of 0 makes no difference
_LOW_HALF, _HIGH_HALF, _TO_EVEN = 16, -0x10000, 0x7FFF


def in_pairs(*tensors: torch.Tensor) -> bool:
    """Whether contiguous tensors can be taken as pairs of bfloat16 numbers."""
    narrow = all(t.dtype == torch.bfloat16 and t.shape[-1] % 2 == 0 for t in tensors)
    return narrow and all(t.data_ptr() % PAIRS.itemsize == 0 for t in tensors)


def load(raw: torch.Tensor, dtype: torch.dtype, cap: torch.Tensor | None) -> torch.Tensor:
    """Logits in the dtype that is worked in, past the model's soft cap where it has one."""
    x = raw.to(dtype)
    return x if cap is None else cap * torch.tanh(x / cap)


def load_lanes(raw: torch.Tensor, dtype: torch.dtype, cap: torch.Tensor | None) -> list[torch.Tensor]:
    """The same, lane by lane."""
    if raw.dtype != PAIRS:
        return [load(raw, dtype, cap)]
    halves = (raw << _LOW_HALF).view(torch.float32), (raw & _HIGH_HALF).view(torch.float32)
    return [load(half, dtype, cap) for half in halves]


def store(out: torch.Tensor, lanes: list[torch.Tensor]) -> None:
    """Write numbers to memory of the caller's dtype."""
    if out.dtype == PAIRS:
        whole = (x.to(torch.float32).view(PAIRS) for x in lanes)
        low, high = (bits + (((bits >> _LOW_HALF) & 1) + _TO_EVEN) for bits in whole)
        out.copy_((high & _HIGH_HALF) | ((low >> _LOW_HALF) & ~_HIGH_HALF))
    else:
        out.copy_(lanes[0])


def finite(x: torch.Tensor) -> torch.Tensor:
    """Logits with -inf replaced; NaN stays."""
    return torch.where(x < LOWEST, LOWEST, x)


def both_finite(
    x: torch.Tensor, y: torch.Tensor, *, no_p: bool, no_q: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits with -inf replaced: where both have it, and with ``no_p`` (``no_q``) where x (y) alone does."""
    finite_x, finite_y = finite(x), finite(y)
    return (
        finite_x if no_p else torch.where(y < LOWEST, finite_x, x),
        finite_y if no_q else torch.where(x < LOWEST, finite_y, y),
    )


def added(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """What lanes have found, put together."""
    return reduce(torch.add, parts)


def past_cap(gradient: torch.Tensor, loaded: torch.Tensor, cap: torch.Tensor | None) -> torch.Tensor:
    """The gradient by raw logits from that by the loaded ones."""
    return gradient if cap is None else gradient * (1 - (loaded / cap).square())


def cooled(scaled: torch.Tensor, cool: torch.Tensor | None) -> torch.Tensor:
    """Logits over the temperature; ``cool`` is one over it, None where it is 1."""
    return scaled if cool is None else scaled * cool


def of_peak(x: torch.Tensor, peak: torch.Tensor, cool: torch.Tensor | None) -> torch.Tensor:
    """exp((x - peak)/temperature), peak [rows]."""
    return exp(cooled(x - peak.unsqueeze(-1), cool))
