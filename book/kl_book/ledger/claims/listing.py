"""The ledger as a page shows it: statements with their verdicts, to filter and search, without a server."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kl_book.ledger.claims.checks import CLAIMS
from kl_book.ledger.claims.definitions import definition
from kl_book.ledger.claims.ledger import checks
from kl_book.ledger.claims.page import anchor
from kl_book.ledger.claims.rows import others
from kl_book.ledger.claims.standard import NAMES, VERDICTS
from kl_book.ledger.claims.texts import Found, letters, plain, rows_as_texts

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("id", "source", "location", "statement", "verdict", "condition", "given", "note", "correction"),
    *("counterexample", "practice", "needs", "record"),
    *("printed_error", "condition_error", "corrected_error", "unit", "how", "chapter"),
)
HOW = {
    "symbols": "derived in symbols",
    "enumeration": "computed by enumeration",
    "simulation": "simulated with seeds",
    "text": "compared with the text, its tables or the cited work",
    "reading": "read, not computed",
}
_SIGN = dict(
    zip(
        VERDICTS,
        ("holds", "only-if", "misprint", "false", "bibliography", "open", "unexamined"),
        strict=True,
    )
)


class Ledger:
    """A table of claims as a list that a reader can filter by source, section and verdict, and search.

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
        known = checks()
        for row in self.rows:
            if row["verdict"] not in VERDICTS:
                raise ValueError(f"{row['id']} has verdict {row['verdict']!r}, expected one of {VERDICTS}")
            if row["id"] not in known:
                raise ValueError(f"{row['id']!r} is the id of no check")

    def counts(self) -> dict[str, dict[str, int]]:
        """Number of statements by source and verdict."""
        found = {source: dict.fromkeys(VERDICTS, 0) for source in {r["source"]: 0 for r in self.rows}}
        for row in self.rows:
            found[row["source"]][row["verdict"]] += 1
        return found

    def __str__(self) -> str:
        return "\n".join(f"{r['id']}: {r['verdict']}. {plain(r['statement'])}" for r in self.rows)

    def _repr_html_(self) -> str:
        entries = "".join(self._entry(row) for row in self.rows)
        return (
            f'<div class="kl-ledger">{self._controls()}'
            f'<p class="kl-count" role="status">{len(self.rows)} statements</p>{entries}</div>'
        )

    def _controls(self) -> str:
        sources = {r["source"]: NAMES[r["source"]] for r in self.rows}
        verdicts = {_SIGN[v]: v for v in VERDICTS if any(r["verdict"] == v for r in self.rows)}
        verdicts["failing"] = "all that do not hold as printed"
        sections = "".join(
            f'<optgroup label="{escape(name)}">'
            + "".join(_option(f"{source}|{s}", s) for s in self._sections(source))
            + "</optgroup>"
            for source, name in sources.items()
        )
        return (
            '<form class="kl-filters" onsubmit="return false">'
            '<label>Search <input type="search" name="words" placeholder="words, or an id"></label>'
            + _select("source", "".join(_option(*pair) for pair in sources.items()))
            + _select("section", sections)
            + _select("verdict", "".join(_option(*pair) for pair in verdicts.items()))
            + "</form>"
        )

    def _sections(self, source: str) -> list[str]:
        return list({section_of(r["location"]): 0 for r in self.rows if r["source"] == source})

    def _entry(self, row: Found) -> str:
        sign = _SIGN[row["verdict"]]
        section = f"{row['source']}|{section_of(row['location'])}"
        where = escape(f"{NAMES[row['source']]}, {row['location']} · {row['id']}")
        return (
            f'<details class="kl-row" id="{anchor(row["id"])}" data-source="{row["source"]}" '
            f'data-section="{escape(section)}" data-verdict="{sign}">'
            f'<summary><span class="kl-verdict kl-{sign}">{escape(row["verdict"])}</span> '
            f"{escape(plain(row['statement']))} <small>{where}</small></summary>"
            f"<dl>{''.join(definition(*pair) for pair in self._details(row))}</dl></details>"
        )

    def _details(self, row: Found) -> list[tuple[str, str]]:
        """Labels with their content in HTML; empty content is left out."""
        said = [
            (
                "Holds if" if row["verdict"] == "holds only if" else "It would hold if",
                _letters(row["condition"]),
            ),
            ("The source gives this condition", _letters(row["given"])),
            ("Instead", _letters(row["correction"])),
            ("Counterexample", _letters(row["counterexample"])),
            ("In practice", _letters(row["practice"])),
            ("Note", _letters(row["note"])),
            ("Checking it takes", escape(row["needs"])),
            ("The cited work says", escape(row["record"])),
            ("Error", escape(_errors(row))),
            (
                "Also said in",
                ", ".join(f'<a href="#{anchor(id)}">{escape(id)}</a>' for id in others(row["id"])),
            ),
            (
                "Check",
                f"{HOW[row['how']]}; run it: <code>python -m kl_book claims {escape(row['id'])}</code>",
            ),
            ("Chapter", self._chapter(row["chapter"])),
            ("Code", f"<pre>{escape(source_of(CLAIMS[row['id']].check))}</pre>"),
        ]
        return [(label, text) for label, text in said if text]

    def _chapter(self, chapter: str) -> str:
        if not chapter:
            return ""
        title = escape(self.titles.get(chapter, chapter.rpartition("/")[2]))
        return f'<a href="{escape(chapter)}.html">{title}</a>'


def section_of(location: str) -> str:
    """The part of a location that a reader would look for: what stands before a comma, slash or bracket."""
    for mark in (",", " / ", " ("):
        location = location.partition(mark)[0]
    return location.strip()


def source_of(check: Callable[..., Any]) -> str:
    """The code of a check; of one that a function makes for several rows, the code of that function."""
    outer = check.__qualname__.partition(".<locals>")[0]
    return inspect.getsource(getattr(sys.modules[check.__module__], outer, check)).rstrip()


def _letters(text: str) -> str:
    """A finding in HTML without formulas to typeset: hundreds of them would make the page slow."""
    return escape(letters(text))


def _errors(row: Found) -> str:
    labels = {
        "printed_error": "as printed",
        "condition_error": "where the condition is met",
        "corrected_error": "corrected",
    }
    said = ", ".join(f"{row[name]} {label}" for name, label in labels.items() if row[name])
    return f"{said} ({row['unit']})" if said and row["unit"] else said


def _select(name: str, options: str) -> str:
    every = _option("", "all")
    return f'<label>{name.capitalize()} <select name="{name}">{every}{options}</select></label>'


def _option(value: str, text: str) -> str:
    return f'<option value="{escape(value)}">{escape(text)}</option>'


def chapter_titles(book: str | os.PathLike[str]) -> dict[str, str]:
    """First heading of every chapter in a folder ``book/``, by the chapter's file without its ending."""
    found = {}
    for path in sorted(Path(book).glob("part*/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = "".join(cells[0]["source"]).splitlines()
        name = path.relative_to(book).with_suffix("").as_posix()
        found[name] = next((line.removeprefix("# ") for line in lines if line.startswith("# ")), path.stem)
    return found
