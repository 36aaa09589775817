"""Compare two settings over a few seeds: the difference, its interval, and a verdict.

Runs of two settings that share a seed share prompts and random numbers, so they are compared pair by pair:
what a seed does to both of them drops out of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from kl_companion.student_t import LEVEL, check_level, t_quantile

Numbers: TypeAlias = Sequence[float] | np.ndarray | pd.Series
MOST_RUNS = 1_000_000


class Comparison(NamedTuple):
    """The mean difference of two settings.

    Attributes:
        difference: Mean over seeds of the first minus the second.
        low, high: Ends of its interval; infinite where there is one seed only.
        n: Number of seeds.
        verdict: ``"equal"``: the whole interval is nearer to 0 than the margin, where one was given, on
            whichever side; else ``"higher"`` or ``"lower"``: the first setting's number, with the whole
            interval on that side of 0; ``"undecided"``: anything else.
        runs_needed: Seeds with which an interval of this center and this spread would be decided: at most
            ``n`` where it is, infinite where no number would do, NaN for one seed.
    """

    difference: float
    low: float
    high: float
    n: int
    verdict: str
    runs_needed: float


def compare(
    a: Numbers, b: Numbers | float = 0.0, *, level: float = LEVEL, margin: float | None = None
) -> Comparison:
    """Compare two settings from paired runs, by Student's interval of the mean difference.

    No number of runs shows that two settings are the same; with a margin, what is smaller than a reader would
    care about can be shown to be so small. With three seeds the quantile is 4.3 standard errors: what is
    called undecided may still be there, and ``runs_needed`` says how many seeds would show it. It takes the
    spread found here for the true one.

    Args:
        a: One number per seed.
        b: The other setting's, in the same order of seeds; or one number that is known exactly.
        level: Of the interval, 0 to 1.
        margin: The largest difference that does not matter; None calls nothing equal.

    Raises:
        ValueError: no seed, arrays of two lengths, numbers that are not finite, a level outside 0 to 1, or a
            margin that is not positive.
    """
    if margin is not None and not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"margin is {margin!r}, expected a positive number, or None")
    first, second = _numbers("a", a), _numbers("b", b)
    if second.ndim and first.shape != second.shape:
        raise ValueError(f"a has {first.size} numbers and b {second.size}, expected one of each per seed")
    d = first - second
    difference, n = float(d.mean()), d.size
    if n == 1:
        t_quantile(1, level)  # checks the level
        return Comparison(difference, -math.inf, math.inf, 1, "undecided", math.nan)
    spread = float(d.std(ddof=1))
    half = t_quantile(n - 1, level) * spread / math.sqrt(n)
    low, high = difference - half, difference + half
    verdict = "higher" if low > 0 else "lower" if high < 0 else "undecided"
    if margin is not None and -margin < low and high < margin:
        verdict = "equal"
    # decided when the half width is below the distance to 0, or to the margin
    room = abs(difference) if margin is None else max(abs(difference), margin - abs(difference))
    return Comparison(difference, low, high, n, verdict, runs_needed(room, spread, level=level))


def runs_needed(difference: float, spread: float, *, level: float = LEVEL) -> float:
    """The fewest paired runs whose interval around ``difference`` leaves out 0, at least 2.

    Args:
        difference: Mean difference of a pair, or any other half width that is wanted.
        spread: Standard deviation of the differences.
        level: Of the interval.

    Returns:
        A whole number; infinity for a difference of 0, or for more than a million runs.

    Raises:
        ValueError: a spread below 0, a number that is not finite, or a level outside 0 to 1.
    """
    if not (math.isfinite(difference) and math.isfinite(spread) and spread >= 0):
        raise ValueError(
            f"got difference={difference}, spread={spread}, expected finite numbers, spread >= 0"
        )
    check_level(level)
    if difference == 0:
        return math.inf
    ratio = spread / abs(difference)
    # fewer runs than the normal quantile asks for never do, and t is above it
    n = max(2, math.ceil((NormalDist().inv_cdf((1 + level) / 2) * ratio) ** 2))
    if n > MOST_RUNS:
        return math.inf
    while t_quantile(n - 1, level) * ratio >= math.sqrt(n):
        n += 1
    return n


def _numbers(name: str, given: Numbers | float) -> np.ndarray:
    x = np.asarray(given, dtype=float)
    if x.ndim > 1 or not x.size:
        raise ValueError(f"{name} has shape {list(x.shape)}, expected one number per seed")
    if not np.isfinite(x).all():
        raise ValueError(f"{name} holds {x[~np.isfinite(x)][0] if x.ndim else x}, expected finite numbers")
    return x
