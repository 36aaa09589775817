"""The directive ``{ledger}``: the statements of one page of the ledger, from the table and the records.

A page is read again when the table, a record, a template or a check changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

BOOK = Path(__file__).resolve().parents[1]
TABLE = BOOK.parent / "tables" / "claims" / "table.csv"
SOURCES = ("*.yml", "*.html", "*.py")


class Ledger(SphinxDirective):
    """``{ledger} PAGE``: its statements."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The statements, in HTML.

        Raises:
            Error: no row is on a page of this name.
        """
        from kl_book import tables
        from kl_book.ledger.claims.listing import chapter_titles, statements_of
        from kl_book.ledger.rendering import pages

        name = self.arguments[0]
        if name not in pages():
            raise self.error(f"the ledger has no page {name!r}, expected one of {', '.join(pages())}")
        for pattern in SOURCES:
            for path in (BOOK / "kl_book" / "ledger").rglob(pattern):
                self.env.note_dependency(str(path))
        self.env.note_dependency(str(TABLE))
        page = statements_of(name, tables.load("claims"), chapter_titles(BOOK))
        return [nodes.raw("", page._repr_html_(), format="html")]


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("ledger", Ledger)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
