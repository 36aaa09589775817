"""Quantiles of Student's distribution, exact for whole degrees of freedom, without SciPy."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

LEVEL = 0.95
SERIES_FROM = 1000  # degrees of freedom from which two terms in 1/degrees are exact to nine digits


def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """Return the t for which Student's distribution has ``level`` of its mass within (-t, t).

    Raises:
        ValueError: degrees below 1, or a level outside 0 to 1.
    """
    if isinstance(degrees, bool) or not isinstance(degrees, int) or degrees < 1:
        raise ValueError(f"degrees is {degrees!r}, expected a whole number of at least 1")
    check_level(level)
    return _quantile(degrees, level)


@functools.cache
def _quantile(degrees: int, level: float) -> float:
    if degrees > SERIES_FROM:
        z = NormalDist().inv_cdf((1 + level) / 2)
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        return z + (z**3 + z) / 4 / degrees + second / degrees**2
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(degrees)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _mass(middle, degrees) < level else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _mass(angle: float, degrees: int) -> float:
    """Mass of (-t, t) with t = sqrt(degrees) tan(angle): a finite sum for whole degrees."""
    s, c = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = (c, 0.0) if odd else (1.0, 0.0)
    for j in range(degrees // 2):
        total += term
        term *= c * c * (2 * j + 1 + odd) / (2 * j + 2 + odd)
        if term < 1e-18 * total:
            break
    return 2 / math.pi * (angle + s * total) if odd else s * total


def check_level(level: float) -> None:
    """Raise ValueError for a level outside 0 to 1."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}, expected a number between 0 and 1")
