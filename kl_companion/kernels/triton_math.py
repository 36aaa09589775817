"""Functions of numbers in Triton's language: those that a divergence is printed with, and its own.

They have the accuracy of `kl_companion.divergences.inline`, from the same constants. Triton compiles a
function from the lines of its file: functions that are printed get lines of their own in `linecache`.
"""

import linecache
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import triton
import triton.language as tl

from kl_companion.divergences import Divergence
from kl_companion.divergences.in_triton import source_of_larger
from kl_companion.divergences.inline import (
    BIAS,
    EXCESS_FITTED,
    LN2_HIGH,
    LN2_LOW,
    LOG_FITTED,
    MANTISSA,
    ROOT,
)

_HIGH, _LOW = tl.constexpr(LN2_HIGH), tl.constexpr(LN2_LOW)
_ROOT, _BIAS, _BITS = tl.constexpr(ROOT), tl.constexpr(BIAS), tl.constexpr(MANTISSA)
_MASK = tl.constexpr((1 << MANTISSA) - 1)
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))  # which knows no machine code
_LOG2_E = tl.constexpr(1.4426950408889634)
NEAR_EXCESS = tl.constexpr(0.75)  # up to which `excess` is fitted


def printed(name: str, source: str, title: str, names: dict[str, Any]) -> Any:
    """Return the function ``name`` of a text, compiled by Triton, under a name that no other text has."""
    unique = f"{name}_{zlib.crc32(source.encode()):08x}"  # Triton's caches may know a function by its name
    name, source = unique, source.replace(f"def {name}(", f"def {unique}(")
    place = f"<Triton function {title}>"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    space = {**names, "tl": tl, "__name__": __name__}
    exec(compile(source, place, "exec"), space)
    return triton.jit(space[name])


def polynomial(coefficients: Sequence[float], title: str) -> Any:
    """Return a Triton function that computes a polynomial, its lowest coefficient first."""
    text = repr(coefficients[-1])
    for c in coefficients[-2::-1]:
        text = f"({text}) * u + {c!r}"
    return printed("at", f"def at(u):\n    return {text}\n", title, {})


excess = polynomial(EXCESS_FITTED, "excess")
_log_rest = polynomial(LOG_FITTED, "log_rest")


@triton.jit
def exp(x):
    """e^x of float32 numbers, 0 where it is less than float32's smallest number of full accuracy."""
    if _INTERPRETED:
        return tl.exp(x)
    else:
        code: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;"
        return tl.inline_asm_elementwise(code, "=f,f", [x * _LOG2_E], tl.float32, True, 1)


@triton.jit
def expm1(x):
    """e^x - 1 in the dtype of x."""
    if x.dtype == tl.float64:
        e = tl.exp(x)
        # the rounding of e is that of x in the quotient too
        exact = tl.where(e - 1.0 == -1.0, -1.0, (e - 1.0) * (x / tl.log(e)))
        return tl.where(e == 1.0, x, tl.where(e == float("inf"), e, exact))
    else:
        return tl.where(tl.abs(x) < NEAR_EXCESS, x + x * x * excess(x), exp(x) - 1.0)


@triton.jit
def log1p(x):
    """log(1 + x) in the dtype of x; see `inline.log1p`."""
    whole = 1.0 + x
    if x.dtype == tl.float64:
        return tl.where(whole == 1.0, x, tl.log(whole) * (x / (whole - 1.0)))
    else:
        lost = x - (whole - 1.0)
        shifted = whole.to(tl.int32, bitcast=True) - _ROOT
        k = shifted >> _BITS
        part = ((shifted & _MASK) + _ROOT).to(tl.float32, bitcast=True)
        scale = ((-k + _BIAS) << _BITS).to(tl.float32, bitcast=True)
        r = (part - 1.0) + lost * scale
        kf = k.to(tl.float32)
        return kf * _HIGH + (r + (r * r * _log_rest(r) + kf * _LOW))


@triton.jit
def tanh(x):
    """tanh of float32 numbers."""
    down = expm1(-2.0 * tl.abs(x))
    return tl.where(x < 0.0, down, -down) / (2.0 + down)


@triton.jit
def power(x, N: tl.constexpr):
    """The N-th power of x, N at least 1."""
    total = x
    for _ in tl.static_range(N - 1):
        total = total * x
    return total


_NAMES = {"expm1": expm1, "log1p": log1p, "power": power}


@cache
def of_larger(d: Divergence) -> Any:
    """Return `Entries.of_larger` of a divergence as a Triton function, which returns five numbers."""
    return printed("of_larger", source_of_larger(d), d.name, _NAMES)


@cache
def series(coefficients: tuple[float, ...]) -> Any:
    """Return the power series of f(t)/t over u^2 as a Triton function of u = log t."""
    return polynomial(coefficients, f"series {coefficients[0]!r}")
