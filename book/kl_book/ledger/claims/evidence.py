"""What the check of a row comes to: its errors, the verdict that follows, and the words beside it."""

from __future__ import annotations

import math
from typing import NamedTuple

from kl_book.ledger.claims.rows import UNITS
from kl_book.ledger.claims.standard import CORRECTED, FAILING, TOLERANCE, UNEXAMINED


class Evidence(NamedTuple):
    """What a check came to: errors, 0 for a statement that holds and beyond `TOLERANCE` for one that fails.

    Attributes:
        printed: Error of the statement as it is printed, over everything that the statement covers.
        corrected: Error of the corrected statement, where there is one.
        inside: Error of the statement as printed where ``condition`` is met.

    The others are the texts of its `Row`, their gaps filled.
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
        return "misprint" if passes and self.agrees_with else "does not hold as worded"

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
