"""What a claim is, and how the numbers of its check become a verdict.

A check computes by how much a statement fails as printed, and by how much its corrected form fails.
It never says "true" or "false": the verdict is computed from these errors.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Literal, NamedTuple

from kl_companion.checks import check_choice, unknown_name

How = Literal["symbols", "enumeration", "simulation", "reading"]
HOW: tuple[How, ...] = ("symbols", "enumeration", "simulation", "reading")
VERDICTS = ("holds", "holds only if", "misprint", "false as printed", "not reproducible here")
FAILING = VERDICTS[1:4]
SOURCES = ("tang2025pitfalls", "wang2025choosing", "shah2025comedy", "summary2025pitfalls", "emapg2026")
TOLERANCE = 1e-9


class Evidence(NamedTuple):
    """What a check found. Errors are 0 for a statement that holds, and beyond `TOLERANCE` for one that fails.

    Attributes:
        printed: Error of the statement as it is printed, over everything that the statement covers.
        corrected: Error of the corrected statement, where there is one.
        inside: Error of the statement as printed where ``condition`` is met.
        condition: The condition under which the printed statement holds, in words.
        agrees_with: Id of the row of the *same source* that the corrected form follows from, which makes
            the printed form a misprint; or ``"proof"`` where the source's own proof, or the formula beside
            the words, gives it.
        needs: What a check would take that cannot be had here (a model, a data set), or ``"a judgement"``.
        counterexample: The smallest case where the printed statement fails, in words and numbers.
        correction: The corrected statement, in words.
    """

    printed: float = math.inf
    corrected: float | None = None
    inside: float | None = None
    condition: str = ""
    agrees_with: str | None = None
    needs: str = ""
    counterexample: str | None = None
    correction: str = ""

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`, computed from the errors; NaN is an error like any other."""
        if self.needs:
            return "not reproducible here"
        if self.printed <= TOLERANCE:
            return "holds"
        if self.inside is not None and self.inside <= TOLERANCE:
            return "holds only if"
        passes = self.corrected is not None and self.corrected <= TOLERANCE
        return "misprint" if passes and self.agrees_with else "false as printed"

    def details(self) -> list[tuple[str, str]]:
        """What there is to say beside the verdict, as (label, text)."""
        if self.needs:
            said = [("needs", self.needs), ("note", self.correction)]
        else:
            said = [("error as printed", f"{self.printed:.3g}")]
            others = {"error under the condition": self.inside, "error corrected": self.corrected}
            said += [(label, f"{error:.3g}") for label, error in others.items() if error is not None]
            said += [("condition", self.condition), ("counterexample", self.counterexample or "")]
            said += [("corrected", self.correction), ("agrees with", self.agrees_with or "")]
        return [(label, text) for label, text in said if text]


class Claim(NamedTuple):
    """A registered check: the row's id, the function that returns `Evidence`, and how it finds out."""

    id: str
    check: Callable[[], Evidence]
    how: How


CLAIMS: dict[str, Claim] = {}


def claim(id: str, *, how: How = "enumeration") -> Callable[[Callable[[], Evidence]], Callable[[], Evidence]]:
    """Register a function as the check of the row ``id`` and return it untouched.

    Raises:
        ValueError: the row has a check already, or ``how`` is none of `HOW`.
    """
    check_choice("how", how, HOW)

    def decorate(check: Callable[[], Evidence]) -> Callable[[], Evidence]:
        if id in CLAIMS and CLAIMS[id].check.__qualname__ != check.__qualname__:
            raise ValueError(f"claim {id!r} has the check {CLAIMS[id].check.__qualname__} already")
        CLAIMS[id] = Claim(id, check, how)
        return check

    return decorate


class Row(NamedTuple):
    """A row of the register: one statement of one source, in our own words.

    ``chapter`` is the file below ``book/`` that treats it, without its ending; empty where none does.
    """

    id: str
    source: str
    location: str
    kind: str
    statement: str
    chapter: str


@cache
def register() -> dict[str, Row]:
    """The rows of ``register.csv`` by id, in the order of the sources."""
    text = files("kl_companion.claims").joinpath("register.csv").read_text(encoding="utf-8")
    return {r["id"]: Row(**r) for r in csv.DictReader(text.splitlines())}


def run(id: str) -> Evidence:
    """Run the check of one row.

    Raises:
        ValueError: no such row, no check for it, or a verdict that lacks what it must say: a condition
            and a counterexample for ``holds only if``, a counterexample for what fails.
    """
    rows = register()
    if id not in rows:
        raise unknown_name("claim", id, list(rows))
    import_module(f"kl_companion.claims.{rows[id].source}")
    if id not in CLAIMS:
        raise ValueError(f"claim {id!r} has no check")
    evidence = CLAIMS[id].check()
    if evidence.verdict in FAILING and not evidence.counterexample:
        raise ValueError(f"claim {id!r}: {evidence.verdict}, expected a counterexample beside it")
    if evidence.verdict == "holds only if" and not evidence.condition:
        raise ValueError(f"claim {id!r}: holds only if, expected the condition in words")
    if evidence.agrees_with not in (None, "proof") and evidence.agrees_with not in rows:
        raise unknown_name("row in agrees_with:", str(evidence.agrees_with), list(rows))
    return evidence


def excess(value: float, printed: str) -> float:
    """By how much a number leaves the range that rounds to ``printed`` (``"1.7"`` is 1.65 to 1.75)."""
    decimals = len(printed.partition(".")[2])
    return max(0.0, abs(value - float(printed)) - 0.5 * 10.0**-decimals)


def violation(*differences: float) -> float:
    """The largest positive one of ``differences``, 0 where none is positive; NaN counts as failing."""
    return max((math.inf if math.isnan(d) else max(0.0, float(d)) for d in differences), default=0.0)
