"""One condition under which a loss was looked at, and what it does there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple


class Condition(NamedTuple):
    """Where a loss was looked at: which sampling, which trees, which size of log-ratios."""

    off_policy: bool
    eos: bool
    scale: float


@dataclass(frozen=True)
class Finding:
    """What a loss does under one condition.

    Attributes:
        condition: See `Condition`; None for problems that the caller gave.
        matches: Every equally short explanation ``{objective: coefficient}``; empty if there is none.
        residual: Relative distance of the gradient field from the first explanation.
        zero: The expected gradient vanishes.
        value_matches: Objectives whose value is the expected value of the loss, with coefficient.
        measure_curl: Computes ``curl``, which costs more than all the rest, when it is asked for.
    """

    condition: Condition | None
    matches: tuple[dict[str, float], ...]
    residual: float
    zero: bool
    value_matches: dict[str, float]
    measure_curl: Callable[[], float] = field(repr=False, compare=False)

    @cached_property
    def curl(self) -> float:
        """Relative asymmetry of the field's Jacobian; zero for the gradient of *some* objective."""
        return 0.0 if self.zero else self.measure_curl()
