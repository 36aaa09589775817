"""One condition under which a loss was looked at, and what it does there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn

from kl_companion.auditing.worlds.trees import Condition as Condition
from kl_companion.rollout import Rollout


class GroupGap(NamedTuple):
    """How far the expected gradient of small groups is from that of large batches, on one world.

    Attributes:
        size: Answers in a group.
        degrees: Between the two gradients; NaN where one of them vanishes.
        ratio: Length of the group's gradient over that of the large batch; infinite where that one vanishes,
            NaN where both do.
        fails: Some group has no loss: where a standard deviation of equal rewards is 0, say.
    """

    size: int
    degrees: float
    ratio: float
    fails: bool = False


def left_out(rollout: Rollout) -> NoReturn:
    """Stand for the loss in the pickle of a verdict; raise ValueError."""
    raise ValueError("the verdict was pickled without its loss, which may be any function: audit it again")


@dataclass(frozen=True)
class Finding:
    """What a loss does under one condition.

    Attributes:
        condition: See `Condition`; None for problems that the caller gave.
        matches: Every equally short explanation ``{objective: coefficient}``; empty if there is none.
        residual: Relative distance of the gradient field from the first explanation.
        zero: The expected gradient vanishes.
        measure_values: Computes ``value_matches``, when they are asked for.
        measure_curl: Computes ``curl``, which costs more than all the rest, when it is asked for.
        units: For each of ``matches``, what its coefficients are in units of, ``{objective: unit}``: a name
            of `kl_companion.auditing.fit.explanations.UNITS` or ``"batch"``.
        sums: The loss is a sum over the answers of the batch; coefficients are those of one answer.
        settles: The gradient has a limit as the batch grows.
        measure_gaps: Of a loss that couples its batch: computes ``gaps``, small groups against large batches.
    """

    condition: Condition | None
    matches: tuple[dict[str, float], ...]
    residual: float
    zero: bool
    measure_values: Callable[[], dict[str, float]] = field(repr=False, compare=False)
    measure_curl: Callable[[], float] = field(repr=False, compare=False)
    units: tuple[Mapping[str, str], ...] = ()
    sums: bool = False
    settles: bool = True
    measure_gaps: Callable[[], tuple[GroupGap, ...]] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def value_matches(self) -> dict[str, float]:
        """Objectives whose value is the expected value of the loss, with coefficient."""
        return self.measure_values()

    @cached_property
    def curl(self) -> float:
        """Relative asymmetry of the field's Jacobian; zero for the gradient of *some* objective."""
        return 0.0 if self.zero else self.measure_curl()

    @property
    def couples(self) -> bool:
        """Whether answers of a batch enter each other's gradient."""
        return self.measure_gaps is not None

    @cached_property
    def gaps(self) -> tuple[GroupGap, ...]:
        """Small groups against large batches; empty for a loss that does not couple its batch."""
        return self.measure_gaps() if self.measure_gaps is not None else ()

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for a pickle, with numbers instead of the functions that measure them."""
        measured: dict[str, Any] = {
            "measure_curl": partial(float, self.curl),
            "measure_values": partial(dict, self.value_matches),
        }
        if self.couples:
            measured["measure_gaps"] = partial(tuple, self.gaps)
        return self.__dict__ | measured
