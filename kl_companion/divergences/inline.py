"""Functions of tensors that printed expressions of f call, and what puts them together without overflow.

No SymPy here: what is printed now, and what was printed before and is read from a file, come through the same
lines. exp, expm1, log1p and the largest of a row are written so that a compiled loop on a CPU does not wait.
There PyTorch's compiler calls a library for each function, and keeps the largest number so far in one
register whose comparison with care for NaN each step waits for. Everywhere else these are torch's own. Inline
they have no derivative, and are accurate to the last digits of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from kl_companion.checks import may_look

_LOG2E, LN2_HIGH, LN2_LOW = 1 / math.log(2), 0.693145751953125, 1.428606765330187e-06
_ROUNDER = 1.5 * 2**23  # adding and subtracting it rounds a float32 to a whole number
_LOW, _HIGH = -87.3, 89.0  # beyond them exp is no normal float32, or infinite
BIAS, MANTISSA = 127, 23
ROOT = 0x3F3504F3  # the bits of sqrt(1/2)
# (e^x - 1 - x)/x^2: Taylor's, and fitted to |x| <= 3/4 for float32, where they are off by 6.0e-9
_EXCESS = tuple(1 / math.factorial(n + 2) for n in range(8))
EXCESS_FITTED = (
    *(0.5, 0.16666672079307152, 0.041666672071244186, 0.008332564026337459),
    *(0.0013888120646464008, 0.00020114278052231762, 2.507430454818263e-05),
)
# (log(1 + x) - x)/x^2 fitted to sqrt(1/2) <= 1 + x <= sqrt(2)
LOG_FITTED = (
    *(-0.49999997132727997, 0.33333670610157023, -0.2500114767763388, 0.19972049709984188),
    *(-0.16588488531898676, 0.1483478683882001, -0.14159647010229592, 0.08787265491105985),
)


def series_at(coefficients: tuple[float, ...], u: torch.Tensor) -> torch.Tensor:
    """A polynomial in u, lowest coefficient first."""
    total = torch.full_like(u, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * u + c
    return total


def _inline(x: torch.Tensor) -> bool:
    return torch.compiler.is_compiling() and x.dtype == torch.float32 and x.device.type == "cpu"


def _reduced(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """2^k and r with x = k log(2) + r and |r| <= log(2)/2, for x within the ends of exp."""
    k = (x * _LOG2E + _ROUNDER) - _ROUNDER
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    return ((k.to(torch.int32) + BIAS) << MANTISSA).view(torch.float32), r


def exp(x: torch.Tensor) -> torch.Tensor:
    """e^x, for x below 88.4; inline, 0 below -87.3 and of NaN."""
    if not _inline(x):
        return x.exp()
    scale, r = _reduced(x)
    return torch.where(x > _LOW, scale + scale * (r + r * r * series_at(EXCESS_FITTED, r)), 0.0)


_LOWEST_EXPM1 = -50.0  # below it e^x - 1 is -1 in float64


def expm1(x: torch.Tensor) -> torch.Tensor:
    """e^x - 1, for x below 88.4.

    PyTorch's compiler writes exp(x) - 1 for it in vector code on a CPU, which has no correct digit near 0. Of
    e^(x/2) - e^(-x/2) = 2 sinh(x/2) it makes what it is.
    """
    if torch.compiler.is_compiling() and x.dtype == torch.float64 and x.device.type == "cpu":
        half = x.clamp(min=_LOWEST_EXPM1) / 2
        return 2 * half.sinh() * half.exp()
    if not _inline(x):
        return x.expm1()
    scale, r = _reduced(x)
    return torch.where(x > _LOW, (scale - 1) + scale * (r + r * r * series_at(EXCESS_FITTED, r)), -1.0)


def exp_and_excess(x: torch.Tensor, u: torch.Tensor, near: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(e^u - 1 - u)/u^2 where ``near``, which |u| <= 3/4 holds for, and e^x elsewhere, of one polynomial.

    Inline e^x is infinite from 88.7.
    """
    if not _inline(x):
        return x.exp(), series_at(_EXCESS, u)
    x = torch.where(x < _HIGH, x, _HIGH)
    scale, r = _reduced(x)
    r = torch.where(near, u, r)
    excess = series_at(EXCESS_FITTED, r)
    return torch.where(x > _LOW, scale + scale * (r + r * r * excess), 0.0), excess


def log1p(x: torch.Tensor) -> torch.Tensor:
    """log(1 + x), for x from the smallest normal number - 1 to the largest."""
    if not _inline(x):
        return x.log1p()
    whole = 1 + x
    lost = x - (whole - 1)
    shifted = whole.view(torch.int32) - ROOT
    k = shifted >> MANTISSA
    part = ((shifted & ((1 << MANTISSA) - 1)) + ROOT).view(torch.float32)
    scale = ((BIAS - k) << MANTISSA).view(torch.float32)
    r = (part - 1) + lost * scale
    kf = k.to(torch.float32)
    return kf * LN2_HIGH + (r + (r * r * series_at(LOG_FITTED, r) + kf * LN2_LOW))


def largest(lanes: list[torch.Tensor]) -> torch.Tensor:
    """The largest number along the last axis of all ``lanes``; NaN where there is one."""
    whole = reduce(torch.maximum, lanes)
    if len(lanes) > 1 or not _inline(whole):
        return whole.amax(-1)
    rest = whole.shape[-1] // 2  # the halves of an odd length share its middle
    return torch.maximum(whole[..., : whole.shape[-1] - rest], whole[..., rest:]).amax(-1)


Elementwise = Callable[[torch.Tensor], torch.Tensor]

NAMES = {
    **{name: getattr(torch, name) for name in ("exp", "log", "sqrt", "expm1", "log1p")},
    **dict.fromkeys(("abs", "Abs"), torch.abs),
    "where": torch.where,
    "sgn": torch.sign,
    "softplus": lambda x: torch.nn.functional.softplus(x, threshold=40.0),
}


def filled(out: Any, like: torch.Tensor) -> Any:
    """What a printed expression gave, constants as tensors; of a tuple each."""
    if isinstance(out, tuple):
        return tuple(filled(part, like) for part in out)
    return out if isinstance(out, torch.Tensor) else torch.full_like(like, float(out))


def moderate(log_t: torch.Tensor) -> bool:
    """Whether f and f' may be taken as they stand: float64, and no power of t near its largest number.

    Reads one value on the host where `may_look` allows; elsewhere the answer is no.
    """
    if log_t.dtype != torch.float64 or not may_look(log_t) or not log_t.numel():
        return False
    return bool(log_t.detach().abs().max() < 20.0)


def slope(
    below: Elementwise,
    above: Elementwise,
    at_infinity: float,
    log_t: torch.Tensor,
) -> torch.Tensor:
    """f'(t) from log t, by a function of log t for t <= 1 and one of -log t for t >= 1; and its limit."""
    gone = log_t.isposinf()  # u e^u would be NaN there
    low, high = log_t.clamp(max=0.0), log_t.clamp(min=0.0).masked_fill(gone, 0.0)
    return torch.where(log_t > 0, above(-high).masked_fill(gone, at_infinity), below(low))


def generator(
    direct: Elementwise,
    other: Elementwise,
    edges: tuple[float, float],
    log_t: torch.Tensor,
) -> torch.Tensor:
    """f(t) where t may overflow, from f and its dual: f(t) below t = 1, t times the dual of 1/t above.

    ``edges`` are f(0) and the limit of f(t)/t, which is the dual at 0.
    """
    lost = log_t.isneginf()  # u e^u would be NaN there
    low, high = log_t.clamp(max=0.0).masked_fill(lost, 0.0), log_t.clamp(min=0.0)
    above = high.exp() * other(-high)
    if edges[1] == 0:  # infinity may meet zero
        above = torch.where(above.isnan(), direct(log_t), above)
    return torch.where(log_t > 0, above, direct(low).masked_fill(lost, edges[0]))
