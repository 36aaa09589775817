"""Errors: by how much a relation between numbers fails; 0 where it holds, infinite for NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from kl_book.ledger.claims.standard import DEGREE, HEDGE_SHARE

STRICT = 1e-6  # "strictly", "biased", "differs": by at least this much


def apart(a: torch.Tensor | float, b: torch.Tensor | float) -> float:
    """Largest absolute difference; NaN becomes infinite."""
    difference = (torch.as_tensor(a, dtype=torch.float64) - torch.as_tensor(b, dtype=torch.float64)).abs()
    return math.inf if difference.isnan().any() else float(difference.max())


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    """Norm of the difference of two vectors over the norm of the right one; NaN becomes infinite."""
    share = float((found - right).norm() / right.norm())
    return math.inf if math.isnan(share) else share


def turned(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Distance of the best positive multiple of an update from the update wanted, relative to that."""
    along = ((found * wanted).sum() / found.square().sum()).clamp(min=0.0)
    return float((along * found - wanted).norm() / wanted.norm())


def worst(errors: Iterable[float]) -> float:
    """The largest of several errors; NaN becomes infinite."""
    return max(math.inf if math.isnan(e) else float(e) for e in errors)


def differs(a: torch.Tensor | float, b: torch.Tensor | float, by: float = STRICT) -> float:
    """Error of "a is not b": how far they are from being ``by`` apart."""
    return max(0.0, by - apart(a, b))


def less(a: float, b: float, by: float = STRICT) -> float:
    """Error of "a is less than b": how much is missing."""
    return math.inf if math.isnan(a) or math.isnan(b) else max(0.0, a - b + by)


def hedged(cases: Iterable[bool]) -> float:
    """Error of a hedged statement: what its share of true cases lacks to `HEDGE_SHARE`."""
    found = [bool(case) for case in cases]
    return violation(HEDGE_SHARE - sum(found) / len(found)) if found else math.inf


def degree(share: float) -> float:
    """Error of "nearly": by how much a relative difference is beyond `DEGREE`."""
    return violation(abs(share) - DEGREE)


def excess(value: float, printed: str) -> float:
    """By how much a number leaves the range that rounds to ``printed`` (``"1.7"`` is 1.65 to 1.75)."""
    decimals = len(printed.partition(".")[2])
    return max(0.0, abs(value - float(printed)) - 0.5 * 10.0**-decimals)


def violation(*differences: float) -> float:
    """The largest positive one of ``differences``, 0 where none is positive; NaN counts as failing."""
    return max((math.inf if math.isnan(d) else max(0.0, float(d)) for d in differences), default=0.0)
