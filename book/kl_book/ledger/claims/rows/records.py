"""The statements of the papers, a record each: our words, their place, and what is said beside the verdict.

A record is data in ``rows/<source>.yml``. Its texts have gaps for numbers, ``{{name}}`` or ``{{name:.2f}}``,
which its check fills. What is computed of it is in the checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, get_args

import torch
import yaml
from pydantic import BaseModel, ValidationError

from kl_book.ledger.claims.standard import SOURCES

How = Literal["symbols", "enumeration", "simulation", "text", "reading"]
Unit = Literal["", "difference", "relative difference", "share of cases", "places in the text"]
UNITS: tuple[Unit, ...] = get_args(Unit)[1:]
Kind = Literal[
    "definition", "identity", "table-row", "algorithm", "experiment", "llm-experiment", "qualitative"
]
Consequence = Literal["result", "derivation", "slip", "bibliography"]
TEXTS = ("condition", "given", "note", "correction", "counterexample", "practice", "needs", "record")
_GAP = re.compile(r"\{\{(\w+)(?::([^{}]*))?\}\}")


class Row(BaseModel, extra="forbid", frozen=True):
    """One statement of one source, and what is to be said of it.

    Texts are in words, with formulas in LaTeX between dollar signs.

    Attributes:
        id: The book's name of the row.
        source: Key of the source.
        location: Where it stands there.
        kind: What sort of statement it is.
        statement: What it says, in our own words.
        chapter: The file below ``book/`` that treats it, without its ending; empty where none does.
        how: How its check finds out.
        unit: What the errors of a row that fails are.
        check: Id of the row whose check and words are those of this one too.
        same: Id of the first of the rows that say the same as this one, in one source or in several.
        condition: The condition under which the printed statement holds.
        given: Where the source itself gives that condition: "stated in ..." or "implied by ...". Without it
            a condition spares nothing.
        note: Of a row that holds or that is a judgement: what was tried, how large things are.
        agrees_with: Id of the row of the *same source* that the corrected form follows from, which makes
            the printed form a misprint; or ``"proof"`` where the source's own proof, or the formula beside
            the words, gives it.
        needs: What a check would take that cannot be had here (a model, a data set), or one of the words of
            the standard for a judgment and for what is not examined yet.
        record: What the cited work itself says; it makes the row bibliography.
        counterexample: A case where the printed statement fails, in words and numbers.
        correction: The corrected statement.
        practice: How much it matters to a training run or a result, with numbers.
    """

    id: str
    source: str
    location: str
    kind: Kind
    statement: str
    chapter: str = ""
    how: How = "enumeration"
    unit: Unit = ""
    check: str = ""
    same: str = ""
    condition: str = ""
    given: str = ""
    note: str = ""
    agrees_with: str = ""
    needs: str = ""
    record: str = ""
    counterexample: str = ""
    correction: str = ""
    practice: str = ""

    @property
    def place(self) -> dict[str, str]:
        """What tells the statement from others: id, source, location, kind, statement and chapter."""
        return {name: getattr(self, name) for name in PLACE}

    @property
    def gaps(self) -> set[str]:
        """Names of the numbers that its texts have gaps for."""
        return {gap[1] for name in TEXTS for gap in _GAP.finditer(getattr(self, name))}

    def filled(self, numbers: Mapping[str, Any]) -> dict[str, str]:
        """Its texts with their gaps filled.

        Raises:
            ValueError: a gap without a number, or a number without a gap.
        """
        if self.gaps != set(numbers):
            raise ValueError(
                f"claim {self.id!r} has gaps for {sorted(self.gaps)}, its check gave {sorted(numbers)}"
            )
        return {
            name: _GAP.sub(lambda gap: _formatted(numbers[gap[1]], gap[2] or ""), getattr(self, name))
            for name in TEXTS
        }


def _formatted(number: Any, form: str) -> str:
    """A number, or several with commas between."""
    several = number.flatten().tolist() if isinstance(number, torch.Tensor) else number
    several = several if isinstance(several, list | tuple) else [several]
    return ", ".join(format(x, form) for x in several)


GRAVEST = "emapg2026"  # one of its corrections changes what people train
PLACE = ("id", "source", "location", "kind", "statement", "chapter")


class Erratum(BaseModel, extra="forbid", frozen=True):
    r"""A correction: rows of one source that one cause makes fail, with what a fair reader wants to know.

    How much it matters in practice, the corrected form, the counterexample and the error come from the rows
    and their checks.

    Attributes:
        title: What is wrong, in a few words.
        rows: Ids of the rows, in their order.
        consequence: What changes if the correction is made.
        printed: What is printed, in our own words, and where exactly.
        why: Why it cannot be right; of bibliography, what the cited work says.
        charitable: The reading under which it is right, or what was most likely intended.
        source: Key of the source.
    """

    title: str
    rows: tuple[str, ...]
    consequence: Consequence
    printed: str
    why: str
    charitable: str
    source: str


class Records(NamedTuple):
    """What the file of a source holds."""

    rows: dict[str, Row]
    errata: tuple[Erratum, ...]


@cache
def records(source: str) -> Records:
    """The rows and the corrections of one source, in the order of its file.

    Raises:
        ValueError: an entry that is no record, with the line of the file.
    """
    text = files("kl_book.ledger.claims").joinpath(f"rows/{source}.yml").read_text(encoding="utf-8")
    return parsed(text, source)


def parsed(text: str, source: str) -> Records:
    """The records of a text in YAML.

    Raises:
        ValueError: an entry that is no record, an id that stands twice, a correction of no row, or of rows
            that leave their order or that another one has; each with its line.
    """
    rows: dict[str, Row] = {}
    errata: list[Erratum] = []
    corrected: set[str] = set()
    for section, line, key, entry in _entries(text):
        where = f"{source}.yml, line {line}"
        if section == "rows":
            if key in rows:
                raise ValueError(f"{where}: row {key!r} stands twice")
            rows[key] = _model(Row, where, {"id": key, "source": source, **entry.pop("at", {}), **entry})
            continue
        erratum = _model(Erratum, where, {"source": source, **entry})
        ids = [id for id in rows if id in erratum.rows and id not in corrected]
        if tuple(ids) != erratum.rows or not ids:
            raise ValueError(
                f"{where}: erratum of {list(erratum.rows)}, expected rows of this file in order, each in one"
            )
        corrected.update(ids)
        errata.append(erratum)
    return Records(rows, tuple(errata))


def _entries(text: str) -> Iterator[tuple[str, int, str, Any]]:
    """(section, line, key, entry) of every row and of every correction; a correction has no key."""
    loader = yaml.CBaseLoader(text)
    document = loader.get_single_node()
    for section, node in document.value:
        pairs = node.value if section.value == "rows" else [(None, item) for item in node.value]
        for key, value in pairs:
            line = (key or value).start_mark.line + 1
            yield section.value, line, key.value if key else "", loader.construct_object(value, deep=True)


def _model(of: type[Any], where: str, fields: dict[str, Any]) -> Any:
    try:
        return of(**fields)
    except ValidationError as error:
        one = error.errors()[0]
        name = ".".join(str(part) for part in one["loc"])
        raise ValueError(f"{where}: {name}: {one['msg']}, got {one['input']!r}") from None


@cache
def register() -> dict[str, Row]:
    """Every row by id, in the order of the sources."""
    return {id: row for source in SOURCES for id, row in records(source).rows.items()}


def others(id: str) -> tuple[str, ...]:
    """The rows that say the same as this one, in the order of the register after the first of them."""
    first = register()[id].same or id
    return tuple(x for x in (first, *_following(first)) if x != id)


@cache
def _following(first: str) -> tuple[str, ...]:
    return tuple(row.id for row in register().values() if row.same == first)


@cache
def errata() -> tuple[Erratum, ...]:
    """All corrections: those that change a result first; of one consequence, those of `GRAVEST` first."""
    order = get_args(Consequence)
    every = [erratum for source in SOURCES for erratum in records(source).errata]
    return tuple(sorted(every, key=lambda e: (order.index(e.consequence), e.source != GRAVEST)))
