"""What a check yields: comparisons of numbers, and the numbers that the words of its row have gaps for.

A comparison is by how much one form of the statement fails: as printed, corrected, or where its condition is
met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch

from kl_book.ledger.claims.ground import errors

Form = Literal["printed", "corrected", "inside"]
Number = torch.Tensor | float


class Shortfall(NamedTuple):
    """By how much one form of a statement fails in one case; 0 where it holds."""

    form: Form
    error: float


class GapNumbers(NamedTuple):
    """Numbers, or words that depend on them, for the gaps in the words of a row."""

    of: dict[str, Any]


class Observations(NamedTuple):
    """One case of each of several numbers; gaps are for the least, the most and the count of all cases."""

    of: dict[str, float]


Found = Shortfall | GapNumbers | Observations


def printed(error: float) -> Shortfall:
    """The statement as it is printed fails by ``error``."""
    return Shortfall("printed", error)


def corrected(error: float) -> Shortfall:
    """Its corrected form fails by ``error``."""
    return Shortfall("corrected", error)


def inside(error: float) -> Shortfall:
    """The printed statement fails by ``error`` where its condition is met, and so it does as printed."""
    return Shortfall("inside", error)


def regardless(error: float) -> tuple[Shortfall, Shortfall]:
    """The printed statement fails by ``error``, and so it does where its condition is met."""
    return printed(error), inside(error)


def same(
    a: Number, b: Number, form: Form = "printed", by: Callable[[Any, Any], float] = errors.apart
) -> Shortfall:
    """Two numbers or tensors are equal; the error is ``by(a, b)``, by default the largest difference."""
    return Shortfall(form, by(a, b))


def differs(a: Number, b: Number, form: Form = "printed", by: float = errors.STRICT) -> Shortfall:
    """Two numbers or tensors differ by at least ``by``."""
    return Shortfall(form, errors.differs(a, b, by))


def less(a: float, b: float, form: Form = "printed", by: float = errors.STRICT) -> Shortfall:
    """``a`` is less than ``b`` by at least ``by``."""
    return Shortfall(form, errors.less(a, b, by))


def at_most(a: Number, b: Number, form: Form = "printed") -> Shortfall:
    """No entry of ``a`` is above that of ``b``; the error is the largest excess."""
    excess = torch.as_tensor(a, dtype=torch.float64) - torch.as_tensor(b, dtype=torch.float64)
    return Shortfall(form, errors.violation(float(excess.max())))


def rises(values: Sequence[float], form: Form = "printed", by: float = errors.STRICT) -> Shortfall:
    """Each of several numbers is less than the next by at least ``by``."""
    return Shortfall(form, errors.worst(errors.less(a, b, by) for a, b in pairwise(values)))


def numbers(**of: Any) -> GapNumbers:
    """Numbers for the gaps in the words of the row, by their names."""
    return GapNumbers(of)


def observed(x: Number | None = None, **of: Number) -> Observations:
    """Return a number of one case, for gaps named after all cases of the check.

    Args:
        x: For the gaps ``least``, ``most`` and ``cases``, which is the number of cases.
        of: By name; ``lost=y`` is for the gaps ``least_lost``, ``most_lost`` and ``cases_lost``.
    """
    values = of if x is None else {"": x, **of}
    return Observations({name: float(value) for name, value in values.items()})
