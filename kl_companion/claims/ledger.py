"""What a claim is, the standard by which statements are judged, and how errors become a verdict.

A check computes by how much a statement fails as printed, and by how much its corrected form fails.
It never says "true" or "false": the verdict is computed from these errors, by one standard for all sources.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

from kl_companion.checks import check_choice, unknown_name

How = Literal["symbols", "enumeration", "simulation", "text", "reading"]
HOW: tuple[How, ...] = get_args(How)
Unit = Literal["difference", "relative difference", "share of cases", "places in the text"]
UNITS: tuple[Unit, ...] = get_args(Unit)
VERDICTS = (
    *("holds", "holds only if", "misprint", "false as printed"),
    *("bibliography", "not reproducible here"),
)
FAILING = VERDICTS[1:4]
CORRECTED = VERDICTS[2:4]
SOURCES = ("tang2025pitfalls", "wang2025choosing", "shah2025comedy", "summary2025pitfalls", "emapg2026")
TOLERANCE = 1e-9
HEDGES = ("generally", "in general", "as a rule", "typically", "usually", "mostly")
HEDGE_SHARE = 0.75  # of the worlds named beforehand
DEGREES = ("nearly", "almost", "about", "negligible", "marginal", "hardly")
DEGREE = 0.1  # relative
JUDGEMENT = "a judgement"


class Rule(NamedTuple):
    """One rule of the standard: a question about a printed statement, and the answer that holds for all."""

    name: str
    text: str


STANDARD: tuple[Rule, ...] = (
    Rule(
        "What is judged",
        "The sentence or formula as it is printed, as widely as it is worded. One case against a "
        "statement that says always, or that says nothing about exceptions, decides.",
    ),
    Rule(
        "Support and setting",
        "Policy, reference and sampler give every outcome a positive probability, as a softmax does, "
        "unless the text speaks of truncated distributions. Samples come from the policy unless another "
        "sampler is named; gradients are expected gradients. Ties decide nothing: worlds in which ratios, "
        "rewards or products of log-ratio and score are the same for every outcome are left out.",
    ),
    Rule(
        "Which restriction spares a statement",
        "Only one that its own text states or that its own setting implies. The row says which, and where "
        "it is printed; the verdict is then 'holds only if'. A restriction that only this book supplies "
        "spares nothing: the row is a misprint or false as printed, and the restriction is shown beside "
        "the correction.",
    ),
    Rule(
        "Hedges",
        "Generally, in general, as a rule, typically, usually, mostly: the statement holds if it is true "
        f"in at least {HEDGE_SHARE:.0%} of worlds that are named before the check runs: those that the "
        "text itself draws, where it says how, and otherwise one fixed list of bandits and trees for all "
        "sources.",
    ),
    Rule(
        "Words of degree",
        f"Nearly, almost, about, negligible, marginally, hardly: within {DEGREE:.0%} of the quantity that "
        "is compared, unless the text gives a number.",
    ),
    Rule(
        "Misprint or false",
        "A misprint is a slip of writing (a sign, symbol, index, name, number or cross-reference) which "
        "another place of the same source sets right. A claim about what is so is never a misprint.",
    ),
    Rule(
        "Bibliography",
        "Years, names and numbers in a list of references are compared with the cited work and form a "
        "class of their own. They are never counted as false statements.",
    ),
    Rule(
        "Judgements",
        "Praise, importance, ease, priority, intention, and advice without a criterion that could be "
        "computed are judgements: no verdict, and the row says what can be computed beside it.",
    ),
    Rule(
        "One statement, one verdict",
        "Rows that say the same, in one source or in several, get the same verdict. Notes on a row that "
        "holds say what was tried and how large things are; they restrict nothing.",
    ),
)


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
        needs: What a check would take that cannot be had here (a model, a data set), or `JUDGEMENT`.
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
            return "not reproducible here"
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
        ValueError: no such row, no check for it, or a verdict that lacks what it must say
            (`Evidence.missing`).
    """
    rows = register()
    if id not in rows:
        raise unknown_name("claim", id, list(rows))
    import_module(f"kl_companion.claims.{rows[id].source}")
    if id not in CLAIMS:
        raise ValueError(f"claim {id!r} has no check")
    evidence = CLAIMS[id].check()
    lacks = evidence.missing()
    if lacks:
        raise ValueError(f"claim {id!r}: {evidence.verdict}, expected {lacks}")
    if evidence.agrees_with not in (None, "proof") and evidence.agrees_with not in rows:
        raise unknown_name("row in agrees_with:", str(evidence.agrees_with), list(rows))
    return evidence


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
