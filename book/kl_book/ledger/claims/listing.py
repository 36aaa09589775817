"""The ledger as its pages show it: statements with their verdicts, to filter and search, without a server."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kl_book.ledger.claims.ledger import checks
from kl_book.ledger.claims.rows import others, register
from kl_book.ledger.claims.standard import VERDICTS
from kl_book.ledger.claims.texts import Found, plain, rows_as_texts
from kl_book.ledger.rendering import page_of, render

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("id", "source", "location", "statement", "verdict", "condition", "given", "note", "correction"),
    *("counterexample", "practice", "needs", "record"),
    *("printed_error", "condition_error", "corrected_error", "unit", "how", "chapter"),
)
METHODS = {
    "symbols": "derived in symbols",
    "enumeration": "computed by enumeration",
    "simulation": "simulated with seeds",
    "text": "compared with the text, its tables or the cited work",
    "reading": "read, not computed",
}
SIGNS = dict(
    zip(
        VERDICTS,
        ("holds", "only-if", "misprint", "false", "bibliography", "open", "unexamined"),
        strict=True,
    )
)
FAILING = ("failing", "all that do not hold as printed")


class Statements:
    """Statements with their verdicts.

    Args:
        claims: The table `claims`, or rows of it.
        titles: Title of each chapter, by the name of its file below ``book/``; a chapter without one is named
            by its file.

    Raises:
        ValueError: a column is missing, a row has a verdict or an id that does not exist, or there is no row.
    """

    def __init__(self, claims: pd.DataFrame, titles: Mapping[str, str] | None = None) -> None:
        self.rows: list[Found] = rows_as_texts(claims, COLUMNS)
        if not self.rows:
            raise ValueError("claims has no row, expected at least one")
        self.titles = dict(titles or {})
        for row in self.rows:
            if row["verdict"] not in VERDICTS:
                raise ValueError(f"{row['id']} has verdict {row['verdict']!r}, expected one of {VERDICTS}")
            if row["id"] not in register():
                raise ValueError(f"{row['id']!r} is the id of no row")

    def counts(self) -> dict[str, dict[str, int]]:
        """Number of statements by source and verdict."""
        counts = {source: dict.fromkeys(VERDICTS, 0) for source in {r["source"]: 0 for r in self.rows}}
        for row in self.rows:
            counts[row["source"]][row["verdict"]] += 1
        return counts

    def verdicts(self) -> list[tuple[str, str]]:
        """What a reader can filter by: the sign and the words of each verdict that a row has."""
        present = [v for v in VERDICTS if any(r["verdict"] == v for r in self.rows)]
        return [*((SIGNS[v], v) for v in present), FAILING]

    def title(self, chapter: str) -> str:
        """The title of a chapter."""
        return self.titles.get(chapter, chapter.rpartition("/")[2])

    def __str__(self) -> str:
        return "\n".join(f"{r['id']}: {r['verdict']}. {plain(r['statement'])}" for r in self.rows)


class Contents(Statements):
    """All statements in one line each, with links to the pages of their papers."""

    def _repr_html_(self) -> str:
        chapters = list(dict.fromkeys(r["chapter"] for r in self.rows if r["chapter"]))
        numbers = {chapter: number for number, chapter in enumerate(chapters, start=1)}
        papers: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            line = {**row, "sign": SIGNS[row["verdict"]], "number": numbers.get(row["chapter"], 0)}
            papers.setdefault(row["source"], []).append(line)
        return render(
            "contents.html",
            papers=list(papers.items()),
            chapters=[(chapter, self.title(chapter)) for chapter in chapters],
            verdicts=self.verdicts(),
            count=len(self.rows),
        )


class Page(Statements):
    """A page of statements of one paper, with what is said beside each verdict and the code of its check."""

    def _repr_html_(self) -> str:
        rows = [self._row(row) for row in self.rows]
        sections = list(dict.fromkeys(row["section"] for row in rows))
        return render("statements.html", rows=rows, sections=sections, verdicts=self.verdicts())

    def _row(self, row: Found) -> dict[str, Any]:
        twin = register()[row["id"]].check
        claim = checks().get(row["id"])
        return {
            **row,
            "sign": SIGNS[row["verdict"]],
            "section": section_of(row["location"]),
            "errors": _errors(row),
            "others": others(row["id"]),
            "method": METHODS[row["how"]],
            "title": self.title(row["chapter"]),
            "twin": twin,
            "code": source_of(claim.generator) if claim else "",
        }


def statements_of(page: str, claims: pd.DataFrame, titles: Mapping[str, str] | None = None) -> Page:
    """The statements that one page of the ledger shows.

    Raises:
        ValueError: a page without rows.
    """
    return Page(claims[[page_of(id) == page for id in claims["id"]]], titles)


def section_of(location: str) -> str:
    """The part of a location that a reader would look for: what stands before a comma, slash or bracket."""
    for mark in (",", " / ", " ("):
        location = location.partition(mark)[0]
    return location.strip()


def source_of(check: Callable[..., Any]) -> str:
    """The code of a check; of one that a function makes for several rows, the code of that function."""
    outer = check.__qualname__.partition(".<locals>")[0]
    return inspect.getsource(getattr(sys.modules[check.__module__], outer, check)).rstrip()


def _errors(row: Found) -> str:
    labels = {
        "printed_error": "as printed",
        "condition_error": "where the condition is met",
        "corrected_error": "corrected",
    }
    errors = ", ".join(f"{row[name]} {label}" for name, label in labels.items() if row[name])
    return f"{errors} ({row['unit']})" if errors and row["unit"] else errors


def chapter_titles(book: str | os.PathLike[str]) -> dict[str, str]:
    """First heading of every chapter in a folder ``book/``, by the chapter's file without its ending."""
    titles = {}
    for path in sorted(Path(book).glob("part*/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = "".join(cells[0]["source"]).splitlines()
        name = path.relative_to(book).with_suffix("").as_posix()
        titles[name] = next((line.removeprefix("# ") for line in lines if line.startswith("# ")), path.stem)
    return titles
