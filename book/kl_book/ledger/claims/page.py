"""What the sources say about the subject of a chapter: how many statements, and how many of them fail.

The verdicts are those of the table `claims`: no check runs here, and no module of checks is imported. So a
chapter that shows statements depends on the table, and not on the code behind it.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import NamedTuple

from kl_book import tables
from kl_book.ledger.claims.standard import FAILING, NAMES
from kl_book.ledger.claims.texts import Found, rows_as_texts
from kl_companion.checks import unknown_name

COLUMNS = ("id", "source", "verdict", "chapter")


class ChapterStatements(NamedTuple):
    """The rows of a chapter, in the order of the sources: the columns `COLUMNS` of the table, as texts."""

    chapter: str
    rows: tuple[Found, ...]

    @property
    def failing(self) -> dict[str, Found]:
        """What does not hold as printed, by id."""
        return {row["id"]: row for row in self.rows if row["verdict"] in FAILING}

    def __str__(self) -> str:
        counts = Counter(row["source"] for row in self.rows)
        papers = ", ".join(f"{NAMES[source]} ({count})" for source, count in counts.items())
        verdicts = Counter(row["verdict"] for row in self.rows if row["verdict"] in FAILING)
        rest = ", ".join(f"{v}: {verdicts[v]}" for v in FAILING if v in verdicts)
        number = f"{len(self.rows)} statement{'s' if len(self.rows) > 1 else ''}"
        checked = f"{number} of the papers on this subject were checked here: {papers}"
        if not rest:
            return f"{checked}; none is found wrong."
        return f"{checked}; {rest} (one case decides)."

    def _repr_html_(self) -> str:
        link = f'<a href="../ledger.html#chapter={self.chapter}">Read them with their checks</a>'
        return f'<p class="kl-claims">{escape(str(self))} {link}.</p>'


def source_statements(chapter: str) -> ChapterStatements:
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
    return ChapterStatements(chapter, rows)
