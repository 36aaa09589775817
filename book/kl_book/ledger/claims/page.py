"""What the sources say about the subject of a chapter, with the verdict on each statement.

The verdicts are those of the table `claims`: no check runs here, and no module of checks is imported. So a
chapter that shows statements depends on the table, and not on the code behind it.
"""

from __future__ import annotations

import re
from html import escape
from typing import NamedTuple

from kl_book import tables
from kl_book.ledger.claims.standard import FAILING, NAMES
from kl_book.ledger.claims.texts import Found, letters, plain, rows_as_texts, typeset
from kl_companion.checks import unknown_name

COLUMNS = (
    *("id", "source", "location", "statement", "verdict", "condition", "given", "correction"),
    *("counterexample", "needs", "chapter"),
)


class Statements(NamedTuple):
    """The rows of a chapter, in the order of the sources: the columns `COLUMNS` of the table, as texts."""

    rows: tuple[Found, ...]

    @property
    def failing(self) -> dict[str, Found]:
        """What does not hold as printed, by id."""
        return {row["id"]: row for row in self.rows if row["verdict"] in FAILING}

    def __str__(self) -> str:
        lines = []
        for row in self.rows:
            lines.append(f"{row['id']}: {row['verdict']}. {plain(row['statement'])}")
            if row["id"] in self.failing:
                lines += [f"    {label}: {letters(text)}" for label, text in _remarks(row)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        kept = [row for row in self.rows if row["id"] not in self.failing]
        groups: dict[tuple[str, ...], list[Found]] = {}
        for row in self.failing.values():  # a remark on several statements is shown once
            groups.setdefault((row["verdict"], *map(str, _remarks(row))), []).append(row)
        entries = "".join(_entry(group) for group in groups.values())
        rest = "".join(
            f"<li>{escape(plain(row['statement']))} <small>{_where(row)}: {row['verdict']}"
            f"{_needs(row)}</small></li>"
            for row in kept
        )
        one = len(self.failing) == 1
        title = "The one that does not hold as printed" if one else "Those that do not hold as printed"
        failing = f"<details><summary>{title}</summary>{entries}</details>"
        others = f"other {len(kept)} statements" if len(kept) > 1 else "other statement"
        others = others if self.failing else f"statement{'s' if len(kept) > 1 else ''}"
        more = f"<details><summary>The {others}</summary><ul>{rest}</ul></details>"
        found = f"{len(self.failing)} {'does' if one else 'do'} not hold as printed"
        count = (
            f"<p>{len(self.rows)} statements of the papers, in our words; "
            f"{found if self.failing else 'none is found wrong'}.</p>"
        )
        folds = (failing if entries else "") + (more if kept else "")
        return f'<div class="kl-claims mathjax_process">{count}{folds}</div>'


def anchor(id: str) -> str:
    """The anchor of a row on the ledger's page: a name that a selector of CSS may hold."""
    return "claim-" + re.sub(r"[^A-Za-z0-9-]", "_", id)


def _where(row: Found) -> str:
    """Source and place, and the row's id as a link to the ledger; chapters lie one folder below it."""
    place = escape(f"{NAMES[row['source']]}, {row['location']}")
    return f'{place} · <a href="../ledger.html#{anchor(row["id"])}">{escape(row["id"])}</a>'


def _needs(row: Found) -> str:
    return escape(f" ({row['needs']})") if row["needs"] else ""


def _remarks(row: Found) -> list[tuple[str, str]]:
    """What is shown below a failing statement: condition or correction, then the counterexample."""
    parts = (
        ("Holds if" if row["verdict"] == "holds only if" else "It would hold if", row["condition"]),
        ("The source gives this condition", row["given"]),
        ("Instead", row["correction"]),
        ("Counterexample", row["counterexample"]),
    )
    return [(label, text) for label, text in parts if text]


def _entry(group: list[Found]) -> str:
    verdict, remarks = group[0]["verdict"], _remarks(group[0])
    claims = "".join(
        f"<p><b>{escape(verdict.capitalize())}.</b> {escape(plain(row['statement']))} "
        f"<small>{_where(row)}</small></p>"
        for row in group
    )
    notes = "".join(f"<div><b>{label}:</b> {typeset(text)}</div>" for label, text in remarks)
    return f"<section>{claims}{notes}</section>"


def source_statements(chapter: str) -> Statements:
    """The statements that a chapter treats, with the verdicts of the table `claims`.

    Args:
        chapter: The chapter's file below ``book/``, without its ending.

    Raises:
        ValueError: a chapter that no row of the table names.
        FileNotFoundError: there is no table: work inside the book's sources.
    """
    every = rows_as_texts(tables.load("claims"), COLUMNS)
    rows = tuple(row for row in every if row["chapter"] == chapter)
    if not chapter or not rows:
        raise unknown_name("chapter", chapter, sorted({row["chapter"] for row in every} - {""}))
    return Statements(rows)
