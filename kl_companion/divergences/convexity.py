"""Check that a generator is convex: its slope never falls, near t = 1 or far from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import sympy

from kl_companion.divergences.forms import T

_FARTHEST = 80.0  # of log t, at which points are looked at
_POINTS = 4001
_SHIFT = 0.0137  # so that no point is a power of two, where a periodic f may have every slope of another
_CLOSER = np.linspace(0.0, 1.0, 42)[1:-1]  # places between two points
_DIPS = 32  # lowest places of f'' around which points lie closer
_DIGITS = 120
_ROUNDING = 1e-100  # of a number that should vanish, with so many digits
_MOST = 200  # points that are looked at with these digits
_FALLS = 1e-12  # of a slope, by rounding


def check_convex(name: str, slope: sympy.Expr, *, kinked: bool) -> None:
    """Raise ValueError unless f' is real and never falls.

    Args:
        name: Name of the divergence, for the message.
        slope: f' in ``T``.
        kinked: Whether it jumps, so that it has no derivative to look at.
    """
    at = np.exp(np.linspace(-_FARTHEST, _FARTHEST, _POINTS) + _SHIFT)
    if kinked:
        _check_slopes(name, slope, at)
        return
    bend = sympy.diff(slope, T)
    fast, careful = _numeric(bend), sympy.lambdify(T, bend, modules="mpmath")
    at = np.concatenate([at, _closer(at, fast(at))])
    doubtful = at[~(fast(at) >= 0)]
    for t in doubtful[:: 1 + len(doubtful) // _MOST]:
        with mpmath.workdps(_DIGITS):
            exact = mpmath.mpmathify(careful(mpmath.mpf(float(t))))
            if abs(mpmath.im(exact)) > _ROUNDING or mpmath.isnan(mpmath.re(exact)):
                raise ValueError(f"f of {name!r} is not real for every t > 0: f'' is {exact} at t = {t:.6g}")
            if mpmath.re(exact) < -_ROUNDING:
                raise ValueError(
                    f"f of {name!r} is not convex: f'' is {float(mpmath.re(exact)):.6g} at t = {t:.6g}, "
                    "expected a slope f' that never falls"
                )


def _closer(at: np.ndarray, bend: np.ndarray) -> np.ndarray:
    """Return points around the lowest places of t f'', where f'' may be negative between two points."""
    by_log = np.nan_to_num(at * bend, nan=np.inf)
    low = 1 + np.flatnonzero((by_log[1:-1] <= by_log[:-2]) & (by_log[1:-1] <= by_log[2:]))
    low = low[np.argsort(by_log[low], kind="stable")[:_DIPS]]
    left, right = at[low - 1, None], at[low + 1, None]
    points: np.ndarray = (left * (right / left) ** _CLOSER).ravel()
    return points


def _check_slopes(name: str, slope: sympy.Expr, at: np.ndarray) -> None:
    slopes = _numeric(slope)(at)
    if np.isnan(slopes).any():
        t = at[np.isnan(slopes)][0]
        raise ValueError(f"f of {name!r} is not real for every t > 0: f' is not at t = {t:.6g}")
    with np.errstate(invalid="ignore"):
        falls = slopes[1:] - slopes[:-1] < -_FALLS * np.maximum(abs(slopes[1:]), abs(slopes[:-1]))
    if falls.any():
        i = int(np.flatnonzero(falls)[0])
        raise ValueError(
            f"f of {name!r} is not convex: f' falls between t = {at[i]:.6g} and t = {at[i + 1]:.6g}, "
            "expected a slope that never falls"
        )


def _numeric(expr: sympy.Expr) -> Callable[[np.ndarray], Any]:
    """Return the expression as a function of an array; NaN where NumPy has no such function or no number."""
    function = sympy.lambdify(T, expr, modules="numpy")

    def numeric(at: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            try:
                return np.broadcast_to(np.asarray(function(at), dtype=float), at.shape)
            except (TypeError, ValueError, NameError, AttributeError, OverflowError):
                return np.full(at.shape, np.nan)

    return numeric
