"""exp and the largest of a row, written so that a compiled loop on a CPU does not wait for them.

There PyTorch's compiler calls a library for exp, and keeps the largest number so far in one register whose
comparison with care for NaN each step waits for. Everywhere else these are torch's own functions.
"""

from __future__ import annotations

import math

import torch

_LOG2E, _LN2_HIGH, _LN2_LOW = 1 / math.log(2), 0.693145751953125, 1.428606765330187e-06
_ROUNDER = 1.5 * 2**23  # adding and subtracting it rounds a float32 to a whole number
_LOW, _HIGH = -104.0, 89.0  # beyond them exp is 0 or infinite in float32
_TAYLOR = tuple(1 / math.factorial(n) for n in range(8))
_BIAS, _MANTISSA = 127, 23


def _inline(x: torch.Tensor) -> bool:
    return torch.compiler.is_compiling() and x.dtype == torch.float32 and x.device.type == "cpu"


def exp(x: torch.Tensor, *, bounded: bool = True) -> torch.Tensor:
    """e to the power x; inline, 0 below the smallest normal number and of NaN, infinite from 88.4.

    ``bounded``: x is known to be smaller than that.
    """
    if not _inline(x):
        return x.exp()
    x = torch.where(x > _LOW, x, _LOW)
    if not bounded:
        x = torch.where(x < _HIGH, x, _HIGH)
    power = (x * _LOG2E + _ROUNDER) - _ROUNDER
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW  # at most log(2)/2 in size
    total = torch.full_like(rest, _TAYLOR[-1])
    for c in _TAYLOR[-2::-1]:
        total = total * rest + c
    return total * ((power.to(torch.int32) + _BIAS).clamp(min=0) << _MANTISSA).view(torch.float32)


def largest(x: torch.Tensor) -> torch.Tensor:
    """The largest number along the last axis; NaN where there is one."""
    half = x.shape[-1] // 2
    if not _inline(x) or x.shape[-1] % 2:
        return x.amax(-1)
    return torch.maximum(x[..., :half], x[..., half:]).amax(-1)
