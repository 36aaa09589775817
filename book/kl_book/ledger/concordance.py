"""Who stated a result first, in which form, and where this book proves it: results, and their tables.

A result of ``concordance.yml`` names rows of the register and works outside of it. The order of the works is
computed from their dates, and the verdicts are those of the table `claims`: neither is typed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from kl_book.ledger import rendering
from kl_book.ledger.claims.rows import register
from kl_book.ledger.claims.standard import NAMES, READINGS, VERDICTS
from kl_book.ledger.claims.texts import plain, rows_as_texts
from kl_companion.checks import check_choice, unknown_name

if TYPE_CHECKING:
    import pandas as pd

GROUPS = (
    *("values", "gradients", "sequences", "off-policy"),
    *("optimal policies", "whole update", "top-k", "moving reference"),
)
RELATIONS = ("states", "corrects", "anticipates", "special case", "contradicts")
STATING = RELATIONS[:2]
HEADS = ("Result", "Earliest among the works read", "Other works", "In this book")


class Work(NamedTuple):
    """A work of the list of references whose statements are not in the ledger: its short name and date."""

    name: str
    date: str


@cache
def _file() -> dict[str, Any]:
    text = files("kl_book.ledger").joinpath("concordance.yml").read_bytes()
    return dict(yaml.load(text, yaml.CBaseLoader))


OUTSIDE = {key: Work(**work) for key, work in _file()["works"].items()}


def date_of(work: str) -> str:
    """The date of a source of the ledger or of a work outside of it.

    Raises:
        ValueError: a key that is neither.
    """
    if work in OUTSIDE:
        return OUTSIDE[work].date
    check_choice("work", work, (*READINGS, *OUTSIDE))
    return READINGS[work].date


def by_date(date: str) -> tuple[str, str]:
    """What dates are sorted by: one without a month comes after the months of its year."""
    return date[:4], date[4:] or "~"


def name_of(work: str) -> str:
    """How the book calls a source of the ledger, or a work outside of it."""
    return OUTSIDE[work].name if work in OUTSIDE else NAMES[work]


def dates() -> dict[str, list[str]]:
    """The sources of the ledger in the order of their dates: name, date, and the version that was read."""
    order = sorted(READINGS.values(), key=lambda source: by_date(source.date))
    return {
        "paper": [source.name for source in order],
        "first version": [s.date if "-" in s.date else f"{s.date}, no month" for s in order],
        "what was read": [source.version for source in order],
    }


class Mention(NamedTuple):
    """What one work says of a result: its key, the relation, its date, and its rows in the ledger."""

    work: str
    relation: str
    date: str
    rows: tuple[str, ...]

    @property
    def name(self) -> str:
        """How the book calls the work."""
        return name_of(self.work)


class Result(NamedTuple):
    """A result of the field.

    Attributes:
        name: The result in one sentence of plain English.
        group: One of `GROUPS`.
        said: Relations (of `RELATIONS`) and who has them: ids of rows, keys of works outside the ledger.
        here: Labels of the propositions or sections of this book that prove or show it.
    """

    name: str
    group: str
    said: tuple[tuple[str, tuple[str, ...]], ...]
    here: tuple[str, ...]

    @property
    def mentions(self) -> list[Mention]:
        """Who says something of it, by date; a date without a month comes after the months of its year."""
        rows: dict[tuple[str, str], tuple[str, ...]] = {}
        for relation, names in self.said:
            for name in names:
                work = name if name in OUTSIDE else register()[name].source
                own = () if name in OUTSIDE else (name,)
                rows[work, relation] = rows.get((work, relation), ()) + own
        found = [Mention(work, relation, date_of(work), own) for (work, relation), own in rows.items()]
        return sorted(found, key=lambda m: (by_date(m.date), RELATIONS.index(m.relation)))

    @property
    def stated(self) -> list[Mention]:
        """The mentions that state it in full, by date."""
        return [m for m in self.mentions if m.relation in STATING]

    @property
    def first(self) -> list[Mention]:
        """Who states it first; several where their dates are the same."""
        stated = self.stated
        return [m for m in stated if m.date == stated[0].date]

    @property
    def others(self) -> list[Mention]:
        """The mentions that are not first."""
        first = self.first
        return [m for m in self.mentions if m not in first]

    @property
    def own(self) -> bool:
        """Whether no work that is named states it: then it is this book's."""
        return not self.stated


def result(group: str, name: str, here: str = "", **said: str) -> Result:
    """A result, checked.

    Args:
        group: One of `GROUPS`.
        name: The result in one sentence.
        here: Labels in this book, with spaces between.
        said: Ids of rows and keys of works with spaces between, by relation, as in ``special_case``.

    Raises:
        ValueError: an unknown group, relation or id, an id that is named twice, a row that this book added to
            a source, or a result that nobody states and that has no place here.
    """
    check_choice("group", group, GROUPS)
    pairs = tuple((relation.replace("_", " "), tuple(names.split())) for relation, names in said.items())
    named: list[str] = []
    for relation, names in pairs:
        check_choice("relation", relation, RELATIONS)
        for id in names:
            if id not in OUTSIDE and id not in register():
                raise unknown_name("row or work", id, [*register(), *OUTSIDE])
            if id in named:
                raise ValueError(f"{name!r} names {id!r} twice, expected once")
            if id in register() and register()[id].location.startswith("addition"):
                raise ValueError(f"{name!r} names {id!r}, an addition of this book, expected what is printed")
            named.append(id)
    made = Result(name, group, pairs, tuple(here.split()))
    if made.own and not made.here:
        raise ValueError(
            f"{name!r} is stated by nobody, expected a label of this book or a row that states it"
        )
    return made


@cache
def results() -> tuple[Result, ...]:
    """All results of the file, topic by topic."""
    return tuple(
        result(group, **{name.replace(" ", "_"): text for name, text in entry.items()})
        for group, entries in _file()["results"].items()
        for entry in entries
    )


class PlaceInBook(NamedTuple):
    """Where a label is: the page below ``book/`` without its ending, and the title of what it names."""

    page: str
    title: str


def places(book: str | os.PathLike[str]) -> dict[str, PlaceInBook]:
    """Every label of a proposition or heading in the chapters of a folder ``book/``."""
    directive = re.compile(r"^`{3,}\{prf:\w+\} *(.*)\n:label: *(\S+)", re.MULTILINE)
    heading = re.compile(r"^\(([\w-]+)\)=\n+#+ (.*)", re.MULTILINE)
    found: dict[str, PlaceInBook] = {}
    for path in sorted(Path(book).glob("part*/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        page = path.relative_to(book).with_suffix("").as_posix()
        found |= {label: PlaceInBook(page, plain(title)) for title, label in directive.findall(text)}
        found |= {label: PlaceInBook(page, plain(title)) for label, title in heading.findall(text)}
    return found


class Concordance(NamedTuple):
    """Results with the verdicts of the table and the places of the book; as text, one line per mention."""

    results: tuple[Result, ...]
    verdicts: Mapping[str, str]
    places: Mapping[str, PlaceInBook]

    def group(self, name: str) -> Concordance:
        """The results of one group."""
        check_choice("group", name, GROUPS)
        return self._replace(results=tuple(r for r in self.results if r.group == name))

    def verdict(self, id: str) -> str:
        """The table's verdict on a row; a row that the table has not yet is not examined yet."""
        return self.verdicts.get(id, VERDICTS[-1])

    def counts(self) -> dict[str, int]:
        """How many results there are, how many several works state, and how many are this book's own."""
        several = sum(len({m.work for m in r.stated}) > 1 for r in self.results)
        own = sum(r.own for r in self.results)
        return {"results": len(self.results), "stated by several works": several, "this book's own": own}

    def __str__(self) -> str:
        lines = []
        for r in self.results:
            lines.append(f"{r.name} ({', '.join(r.here) or 'not treated here'})")
            for m in r.mentions:
                rows = "; ".join(f"{id}: {self.verdict(id)}" for id in m.rows) or "not in the ledger"
                lines.append(f"    {m.date} {name_of(m.work)}, {m.relation}: {rows}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return rendering.render(
            "concordance.html",
            results=self.results,
            heads=HEADS,
            verdict=self.verdict,
            places=self.places,
            rows=register(),
        )


def concordance(
    results: Iterable[Result], claims: pd.DataFrame, labels: Mapping[str, PlaceInBook]
) -> Concordance:
    """Join results with the verdicts of the table `claims` and with the labels of the book.

    Raises:
        ValueError: a column is missing, or a result names a label that the book does not have.
    """
    chosen = tuple(results)
    for label in (label for r in chosen for label in r.here):
        check_choice("label", label, labels)
    rows = rows_as_texts(claims, ("id", "verdict"))
    return Concordance(chosen, {row["id"]: row["verdict"] for row in rows}, labels)
