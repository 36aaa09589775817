"""What a result in floating point may be: the exact numbers of inputs that differ by their rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from hypothesis import strategies as st
from mpmath import inf, mpf

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def log_ratios() -> st.SearchStrategy[float]:
    """Numbers of every size up to 1e4, both signs, and zero."""
    sizes = st.floats(-9, 4).map(lambda x: 10.0**x)
    return st.one_of(st.just(0.0), sizes, sizes.map(lambda x: -x), st.sampled_from([-1e4, 1e4, 88.0, -88.0]))


def logits(tokens: int) -> st.SearchStrategy[list[float]]:
    """A row of logits up to 1e4, some of them -inf, at least one not."""
    one = st.one_of(st.floats(-5, 5), st.floats(-1e4, 1e4), st.just(-math.inf))
    row = st.lists(one, min_size=tokens, max_size=tokens)
    return row.filter(lambda xs: max(xs) > -math.inf)


class Between:
    """Two numbers and a result that should lie between them.

    Args:
        values: The function at the input, and at inputs that differ from it by rounding.
        rounding: What its own arithmetic may add, as a multiple of the dtype's eps.
        dtype: Of the result.
    """

    def __init__(self, values: Iterable[mpf], rounding: mpf, dtype: torch.dtype) -> None:
        kept = list(values)
        about = torch.finfo(dtype)
        slack = mpf(about.eps) * rounding + 8 * mpf(about.tiny)
        self.low, self.high = min(kept) - slack, max(kept) + slack
        # what is made on the way may be larger than the result by a log-ratio
        self.overflows = max(abs(self.low), abs(self.high)) * 64 > mpf(about.max)
        self.largest = mpf(about.max)

    def holds(self, got: float) -> bool:
        """Whether the result is one of them; beyond the largest number infinity stands for it."""
        if math.isnan(got):
            return False
        if math.isinf(got) or abs(mpf(got)) >= self.largest:
            return self.overflows and (self.high if got > 0 else -self.low) > 0
        return bool(self.low <= mpf(got) <= self.high)

    def __repr__(self) -> str:
        return f"between {float(self.low):.17g} and {float(self.high):.17g}"


def around(
    function: Callable[[mpf], mpf], u: mpf, eps: float, dtype: torch.dtype, least: float = 0.0
) -> Between:
    """What `function(u)` may be when u is rounded, and each step after it; one may be as large as `least`.

    The derivative of w - 1 - log w is such a case: autograd takes 1 from w, however near to 1 that is.
    """
    values = [function(u * (1 + step * mpf(eps))) for step in (-4, -2, 0, 2, 4)]
    size = max(map(abs, values))
    steps = min(abs(u), mpf(16))
    return Between(values, 16 * (size * (1 + steps) + max(min(steps, mpf(1)), least)), dtype)


def sums(parts: Iterable[Between], dtype: torch.dtype) -> Between:
    """The sum of numbers that lie between others."""
    kept = list(parts)
    low, high = sum((p.low for p in kept), mpf(0)), sum((p.high for p in kept), mpf(0))
    size = max([abs(p.low) for p in kept] + [abs(p.high) for p in kept] + [mpf(0)])
    return Between([low, high], 4 * len(kept) * size if size < inf else mpf(0), dtype)
