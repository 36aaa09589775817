"""What a check finds, how errors become a verdict, and where the checks are registered.

A check computes by how much a statement fails as printed, and by how much its corrected form fails.
It never says "true" or "false": the verdict is computed from these errors, by one standard for all sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Literal, NamedTuple, get_args

from kl_book.ledger.claims.standard import CORRECTED, FAILING, TOLERANCE, UNEXAMINED
from kl_book.ledger.claims.statements import register
from kl_companion.checks import check_choice, unknown_name

How = Literal["symbols", "enumeration", "simulation", "text", "reading"]
HOW: tuple[How, ...] = get_args(How)
Unit = Literal["difference", "relative difference", "share of cases", "places in the text"]
UNITS: tuple[Unit, ...] = get_args(Unit)


class Evidence(NamedTuple):
    """What a check found. Errors are 0 for a statement that holds, and beyond `TOLERANCE` for one that fails.

    Texts are in words, with formulas in LaTeX between dollar signs.

    Attributes:
        printed: Error of the statement as it is printed, over everything that the statement covers.
        corrected: Error of the corrected statement, where there is one.
        inside: Error of the statement as printed where ``condition`` is met.
        condition: The condition under which the printed statement holds, in words.
        given: Where the source itself gives that condition: "stated in ..." or "implied by ...". Without it
            a condition spares nothing.
        note: Of a row that holds or that is a judgement: what was tried, how large things are.
        agrees_with: Id of the row of the *same source* that the corrected form follows from, which makes
            the printed form a misprint; or ``"proof"`` where the source's own proof, or the formula beside
            the words, gives it.
        needs: What a check would take that cannot be had here (a model, a data set), `JUDGEMENT`, or
            `UNEXAMINED`.
        record: What the cited work itself says; it makes the row bibliography.
        counterexample: A case where the printed statement fails, in words and numbers.
        correction: The corrected statement, in words.
        practice: How much it matters to a training run or a result, with numbers.
        unit: What the errors of a row that fails are: one of `UNITS`.
    """

    printed: float = math.inf
    corrected: float | None = None
    inside: float | None = None
    condition: str = ""
    given: str = ""
    note: str = ""
    agrees_with: str | None = None
    needs: str = ""
    record: str = ""
    counterexample: str | None = None
    correction: str = ""
    practice: str = ""
    unit: str = ""

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`, computed from the errors; NaN is an error like any other."""
        if self.needs:
            return "not examined yet" if self.needs == UNEXAMINED else "not reproducible here"
        if self.record:
            return "bibliography"
        if self.printed <= TOLERANCE:
            return "holds"
        if self.given and self.inside is not None and self.inside <= TOLERANCE:
            return "holds only if"
        passes = self.corrected is not None and self.corrected <= TOLERANCE
        return "misprint" if passes and self.agrees_with else "false as printed"

    def details(self) -> list[tuple[str, str]]:
        """What there is to say beside the verdict, as (label, text)."""
        said: list[tuple[str, str]] = [("needs", self.needs), ("record", self.record)]
        if not self.needs and not self.record:
            unit = f" ({self.unit})" if self.unit else ""
            errors = {
                "error as printed": self.printed,
                "error under the condition": self.inside,
                "error corrected": self.corrected,
            }
            said = [(label, f"{e:.3g}{unit}") for label, e in errors.items() if e is not None]
        holds = "holds if" if self.verdict == "holds only if" else "would hold if"
        said += [(holds, self.condition), ("the source gives this", self.given), ("note", self.note)]
        said += [("counterexample", self.counterexample or ""), ("corrected", self.correction)]
        said += [("in practice", self.practice), ("agrees with", self.agrees_with or "")]
        return [(label, text) for label, text in said if text]

    def missing(self) -> str | None:
        """What the verdict calls for and the evidence does not say; None where nothing is missing."""
        verdict = self.verdict
        if verdict in FAILING and not self.counterexample:
            return "a counterexample beside it"
        if verdict in FAILING and self.unit not in UNITS:
            return f"the unit of its error, one of {', '.join(UNITS)}"
        if verdict == "holds only if" and not self.condition:
            return "the condition in words"
        if self.given and not self.given.startswith(("stated in ", "implied by ")):
            return "given to begin with 'stated in' or 'implied by' and the place"
        if verdict in CORRECTED and not self.correction:
            return "the corrected statement in words"
        if verdict == "holds" and self.condition:
            return "no condition: what restricts nothing is a note"
        return None


class Claim(NamedTuple):
    """A registered check: the row's id, the function that returns `Evidence`, and how it finds out."""

    id: str
    check: Callable[[], Evidence]
    how: How


CLAIMS: dict[str, Claim] = {}


def claim(*ids: str, how: How = "enumeration") -> Callable[[Callable[[], Evidence]], Callable[[], Evidence]]:
    """Register a function as the check of the rows ``ids``, which say the same, and return it untouched.

    Raises:
        ValueError: a row has a check already, or ``how`` is none of `HOW`.
    """
    check_choice("how", how, HOW)

    def decorate(check: Callable[[], Evidence]) -> Callable[[], Evidence]:
        for id in ids:
            if id in CLAIMS and CLAIMS[id].check.__qualname__ != check.__qualname__:
                raise ValueError(f"claim {id!r} has the check {CLAIMS[id].check.__qualname__} already")
            CLAIMS[id] = Claim(id, check, how)
        return check

    return decorate


# each name written out, so that the files behind the checks can be found by reading the code
_SOURCES: dict[str, Callable[[], object]] = {
    "tang2025pitfalls": lambda: import_module("kl_book.ledger.claims.tang2025pitfalls"),
    "wang2025choosing": lambda: import_module("kl_book.ledger.claims.wang2025choosing"),
    "shah2025comedy": lambda: import_module("kl_book.ledger.claims.shah2025comedy"),
    "summary2025pitfalls": lambda: import_module("kl_book.ledger.claims.summary2025pitfalls"),
    "emapg2026": lambda: import_module("kl_book.ledger.claims.emapg2026"),
    "yao2026future": lambda: import_module("kl_book.ledger.claims.yao2026future"),
    "ding2026misfires": lambda: import_module("kl_book.ledger.claims.ding2026misfires"),
    "vojnovic2025alignment": lambda: import_module("kl_book.ledger.claims.vojnovic2025alignment"),
    "zhang2025design": lambda: import_module("kl_book.ledger.claims.zhang2025design"),
    "zheng2025stabilizing": lambda: import_module("kl_book.ledger.claims.zheng2025stabilizing"),
}


def checks() -> dict[str, Claim]:
    """Every check by the id of its row: all sources are imported."""
    for load in _SOURCES.values():
        load()
    return CLAIMS


def run(id: str) -> Evidence:
    """Run the check of one row.

    Raises:
        ValueError: no such row, no check for it, or a verdict that lacks what it must say
            (`Evidence.missing`).
    """
    rows = register()
    if id not in rows:
        raise unknown_name("claim", id, list(rows))
    _SOURCES[rows[id].source]()
    if id not in CLAIMS:
        raise ValueError(f"claim {id!r} has no check")
    evidence = CLAIMS[id].check()
    lacks = evidence.missing()
    if lacks:
        raise ValueError(f"claim {id!r}: {evidence.verdict}, expected {lacks}")
    if evidence.agrees_with not in (None, "proof") and evidence.agrees_with not in rows:
        raise unknown_name("row in agrees_with:", str(evidence.agrees_with), list(rows))
    return evidence
