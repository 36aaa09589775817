"""The corrections as a page shows them: the words of an entry beside what the checks of its rows computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kl_book.ledger import rendering
from kl_book.ledger.claims.rows import Erratum, errata
from kl_book.ledger.claims.standard import NAMES, SOURCES
from kl_book.ledger.claims.texts import Found, letters, plain, rows_as_texts
from kl_companion.checks import check_choice

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("id", "location", "verdict", "condition", "correction", "counterexample", "practice", "record"),
    *("printed_error", "unit"),
)


CONSEQUENCES = {
    "result": "What changes a result or a training run",
    "derivation": "What changes a derivation or a description, and no result",
    "slip": "Signs, symbols and other slips of writing",
    "bibliography": "Bibliography",
}


class Entry(NamedTuple):
    """A correction and the rows of the table that it names."""

    erratum: Erratum
    rows: tuple[Found, ...]

    @property
    def title(self) -> str:
        """The paper and what is wrong in it."""
        return f"{NAMES[self.erratum.source]}: {self.erratum.title}"

    def distinct(self, column: str) -> list[str]:
        """The different texts of a column, in the order of the rows."""
        return [text for text in dict.fromkeys(f[column] for f in self.rows) if text]

    def details(self) -> list[tuple[str, list[str]]]:
        """What there is to say, as (label, texts); locations and commands are not in it."""
        errors = dict.fromkeys(f"{f['printed_error']} ({f['unit']})" for f in self.rows if f["printed_error"])
        said = [
            ("Printed", [self.erratum.printed]),
            ("Why it cannot be right", [self.erratum.why]),
            ("The cited work says", self.distinct("record")),
            ("Corrected", self.distinct("correction")),
            ("It would hold if", self.distinct("condition")),
            ("A counterexample", self.distinct("counterexample")),
            ("Error as printed", list(errors)),
            ("In practice", self.distinct("practice")),
            ("Charitable reading", [self.erratum.charitable]),
        ]
        return [(label, texts) for label, texts in said if texts]


class ErrataPage(NamedTuple):
    """Corrections by consequence, each with the numbers of its checks."""

    entries: tuple[Entry, ...]

    def by_consequence(self) -> dict[str, list[Entry]]:
        """The entries of each consequence that has one, the gravest first."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.erratum.consequence, []).append(entry)
        return found

    def __str__(self) -> str:
        lines = []
        for consequence, entries in self.by_consequence().items():
            lines.append(CONSEQUENCES[consequence])
            for entry in entries:
                lines += _lines(entry)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        groups = [(CONSEQUENCES[name], entries) for name, entries in self.by_consequence().items()]
        return rendering.render("corrections.html", groups=groups)


class Conditions(NamedTuple):
    """Statements that hold only under a condition that their own source gives."""

    rows: tuple[Found, ...]

    def __str__(self) -> str:
        return "\n".join(
            f"{r['id']}: {plain(r['statement'])}\n"
            + "\n".join(f"    {label}: {letters(r[name])}" for label, name in _CONDITIONS.items())
            for r in self.rows
        )

    def _repr_html_(self) -> str:
        return rendering.render("conditions.html", rows=self.rows, labels=list(_CONDITIONS.items()))


_CONDITIONS = {"Holds if": "condition", "The source gives this": "given", "Outside of it": "counterexample"}


def conditions_page(claims: pd.DataFrame) -> Conditions:
    """The rows of the table `claims` with the verdict "holds only if", for a page to show.

    Raises:
        ValueError: a column is missing.
    """
    wanted = ["id", "source", "location", "statement", "verdict", *_CONDITIONS.values()]
    rows = rows_as_texts(claims, wanted)
    return Conditions(tuple(r for r in rows if r["verdict"] == "holds only if"))


def _lines(entry: Entry) -> list[str]:
    where = "; ".join(f"{row['location']} ({row['id']}: {row['verdict']})" for row in entry.rows)
    details = [f"    {label}: {letters(text)}" for label, texts in entry.details() for text in texts]
    return [f"  {letters(entry.title)}", f"    Where: {where}", *details]


def errata_page(claims: pd.DataFrame, source: str | None = None) -> ErrataPage:
    """Join the corrections with the table of claims.

    Args:
        claims: The table `claims`, or rows of it.
        source: A key of `SOURCES`: its corrections alone.

    Raises:
        ValueError: a column is missing, the source is unknown, or a correction names a row that is not in the
            table.
    """
    rows = {row["id"]: row for row in rows_as_texts(claims, COLUMNS)}
    if source is not None:
        check_choice("source", source, SOURCES)
    chosen = [e for e in errata() if source in (None, e.source)]
    absent = [id for entry in chosen for id in entry.rows if id not in rows]
    if absent:
        raise ValueError(f"claims has no row {absent[0]!r}, which an erratum names")
    return ErrataPage(tuple(Entry(e, tuple(rows[id] for id in e.rows)) for e in chosen))
