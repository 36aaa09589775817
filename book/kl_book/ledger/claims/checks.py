"""Where checks are registered: a check is a generator of comparisons, of one world or of none.

A check says by how much a statement fails as printed, and by how much its corrected form fails. It never says
"true" or "false": the verdict is computed from these errors, by one standard for all sources. No section is
loaded here; `ledger` does that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

from kl_book.ledger.claims.comparisons import Found, Observations, Shortfall
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.rows import register

Check = Callable[..., Iterator[Found]]
Worlds = Callable[[], Iterable[Any]]


class Claim(NamedTuple):
    """A registered check: the row's id, its generator, and the worlds that it is run over; None: run once."""

    id: str
    generator: Check
    over: Worlds | None = None

    @property
    def how(self) -> str:
        """Method of the check, as its row names it."""
        return register()[self.id].how

    def on(self, case: Any) -> Iterator[Found]:
        """Run the generator on one case, its one argument or a tuple of several."""
        several = self.over is None or len(signature(self.generator).parameters) != 1
        return self.generator(*case) if several else self.generator(case)

    def check(self) -> Evidence:
        """The worst error of each form over all worlds, beside the words of the row.

        Raises:
            ValueError: the words have a gap without a number, or a number has no gap.
        """
        errors: dict[str, float] = {}
        numbers: dict[str, Any] = {}
        cases: dict[str, list[float]] = {}
        for case in [()] if self.over is None else self.over():
            for one in self.on(case):
                if isinstance(one, Shortfall):
                    error = math.inf if math.isnan(one.error) else float(one.error)
                    errors[one.form] = max(errors.get(one.form, 0.0), error)
                elif isinstance(one, Observations):
                    for name, x in one.of.items():
                        cases.setdefault(name, []).append(x)
                else:
                    numbers |= one.of
        if "inside" in errors:  # what fails where the condition is met fails as printed
            errors["printed"] = max(errors["inside"], errors.get("printed", 0.0))
        return evidence(self.id, errors, numbers, cases)


CLAIMS: dict[str, Claim] = {}
WORDS: dict[str, Callable[[], dict[str, Any]]] = {}


def claim(*ids: str, over: Worlds | None = None) -> Callable[[Check], Check]:
    """Register a generator as the check of the rows ``ids``, and return it untouched.

    Args:
        ids: Rows that have this check.
        over: Returns the cases that the check is run on, one after the other: worlds, or tuples of its
            arguments; without it the check is run once and has no argument.

    Raises:
        ValueError: a row has a check already.
    """

    def decorate(generator: Check) -> Check:
        for id in ids:
            if id in CLAIMS and CLAIMS[id].generator.__qualname__ != generator.__qualname__:
                raise ValueError(f"claim {id!r} has the check {CLAIMS[id].generator.__qualname__} already")
            CLAIMS[id] = Claim(id, generator, over)
        return generator

    return decorate


def claim_rows(check: Check, cases: Mapping[str, Iterable[Any]]) -> None:
    """Register one generator as the check of several rows, each with cases of its own to be run over."""
    for id, of_row in cases.items():
        claim(id, over=partial(iter, tuple(of_row)))(check)


def words(*ids: str) -> Callable[[Callable[[], dict[str, Any]]], Callable[[], dict[str, Any]]]:
    """Register a function that returns the numbers of a worked example for the gaps in the words of rows."""

    def decorate(numbers: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        WORDS.update(dict.fromkeys(ids, numbers))
        return numbers

    return decorate


def extremes(cases: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the least and the most of several cases of each number and how many there are, by gap."""
    gaps: dict[str, float] = {}
    for name, values in cases.items():
        end = f"_{name}" if name else ""
        gaps |= {f"least{end}": min(values), f"most{end}": max(values), f"cases{end}": len(values)}
    return gaps


def evidence(
    id: str, errors: dict[str, float], numbers: dict[str, Any], cases: Mapping[str, Sequence[float]]
) -> Evidence:
    """Errors and numbers of a check beside the words of its row; of ``cases`` what the words have gaps for.

    Raises:
        ValueError: the words have a gap without a number, or a number has no gap.
    """
    row = register()[id]
    words = register()[row.check] if row.check else row
    example = WORDS.get(words.id, dict)() | extremes(cases)  # of which other rows may have the rest
    own = {name: x for name, x in example.items() if name in words.gaps}
    fields: dict[str, Any] = {**errors, **words.filled(own | numbers)}
    return Evidence(unit=words.unit, agrees_with=words.agrees_with or None, **fields)
