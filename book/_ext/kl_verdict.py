"""The role ``{verdict}``: the ledger's verdict on a row, printed from the table, with a link to the row.

A chapter that says what became of a printed statement names the row and not the verdict, so that the two
cannot disagree: ``{verdict}`TM-4.1-k3` ``.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxRole

TABLE = Path(__file__).resolve().parents[2] / "tables" / "claims" / "table.csv"
LEDGER = "book/ledger/"
# behind a statement, where no condition follows
IN_TEXT = {"holds only if": "holds with a condition"}


@cache
def verdicts() -> dict[str, str]:
    """The verdict on every row of the ledger, by its id."""
    with TABLE.open(encoding="utf-8") as lines:
        return {row["id"]: row["verdict"] for row in csv.DictReader(lines)}


class Verdict(SphinxRole):
    """``{verdict}`ID` ``: the verdict in italics, linked to the row."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """The link; an error for an id that the ledger does not have."""
        from kl_book.ledger.rendering import address

        self.env.note_dependency(str(TABLE))
        id = self.text.strip()
        if id not in verdicts():
            message = self.inliner.reporter.error(f"the ledger has no row {id!r}", line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        folder = "../" * self.env.docname.count("/") + LEDGER
        link = nodes.reference("", "", internal=True, refuri=address(id, folder), classes=["kl-verdict-link"])
        link += nodes.emphasis("", IN_TEXT.get(verdicts()[id], verdicts()[id]))
        return [link], []


def setup(app: Any) -> dict[str, Any]:
    """Register the role."""
    app.add_role("verdict", Verdict())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
