"""What the sources say about a chapter's subject, with the verdict of each check, for the chapter to show.

The sources are imported here, all of them: whoever shows statements is known to depend on their checks.
"""

from __future__ import annotations

import re
from html import escape
from typing import NamedTuple

import kl_companion.claims.emapg2026
import kl_companion.claims.shah2025comedy
import kl_companion.claims.summary2025pitfalls
import kl_companion.claims.tang2025pitfalls
import kl_companion.claims.wang2025choosing  # noqa: F401
from kl_companion.checks import unknown_name
from kl_companion.claims.ledger import FAILING, Evidence, Row, register, run
from kl_companion.claims.sources import NAMES
from kl_companion.claims.texts import letters, plain, typeset


class Statements(NamedTuple):
    """The rows of a chapter, in the order of the sources, each with what its check found."""

    rows: tuple[tuple[Row, Evidence], ...]

    @property
    def failing(self) -> dict[str, Evidence]:
        """What does not hold as printed, by id."""
        return {row.id: found for row, found in self.rows if found.verdict in FAILING}

    def __str__(self) -> str:
        lines = []
        for row, found in self.rows:
            lines.append(f"{row.id}: {found.verdict}. {plain(row.statement)}")
            if row.id in self.failing:
                lines += [f"    {label}: {letters(text)}" for label, text in _said(found)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        kept = [(r, e) for r, e in self.rows if r.id not in self.failing]
        groups: dict[tuple[str, ...], list[tuple[Row, Evidence]]] = {}
        for row, found in self.rows:  # what is said against several statements is said once
            if row.id in self.failing:
                groups.setdefault((found.verdict, *map(str, _said(found))), []).append((row, found))
        entries = "".join(_entry(group) for group in groups.values())
        rest = "".join(
            f"<li>{escape(plain(r.statement))} <small>{_where(r)}: {e.verdict}"
            f"{escape(f' ({e.needs})' if e.needs else '')}</small></li>"
            for r, e in kept
        )
        more = f"<details><summary>The other {len(kept)} statements</summary><ul>{rest}</ul></details>"
        count = (
            f"<p>{len(self.rows)} statements of the sources, in our words; "
            f"{len(self.failing)} do not hold as printed.</p>"
        )
        return f'<div class="kl-claims mathjax_process">{count}{entries}{more if kept else ""}</div>'


def anchor(id: str) -> str:
    """The anchor of a row on the ledger's page: a name that a selector of CSS may hold."""
    return "claim-" + re.sub(r"[^A-Za-z0-9-]", "_", id)


def _where(row: Row) -> str:
    """Source and place, and the row's id as a link to the ledger; chapters lie one folder below it."""
    place = escape(f"{NAMES[row.source]}, {row.location}")
    return f'{place} · <a href="../ledger.html#{anchor(row.id)}">{escape(row.id)}</a>'


def _said(found: Evidence) -> list[tuple[str, str]]:
    """What stands below a failing statement: condition or correction, then the counterexample."""
    parts = (
        ("Holds if" if found.verdict == "holds only if" else "It would hold if", found.condition),
        ("The source gives this condition", found.given),
        ("Instead", found.correction),
        ("Counterexample", found.counterexample or ""),
    )
    return [(label, text) for label, text in parts if text]


def _entry(group: list[tuple[Row, Evidence]]) -> str:
    verdict, said = group[0][1].verdict, _said(group[0][1])
    claims = "".join(
        f"<p><b>{escape(verdict.capitalize())}.</b> {escape(plain(row.statement))} "
        f"<small>{_where(row)}</small></p>"
        for row, _ in group
    )
    notes = "".join(f"<div><b>{label}:</b> {typeset(text)}</div>" for label, text in said)
    return f"<section>{claims}{notes}</section>"


def source_statements(chapter: str) -> Statements:
    """Run the checks of every statement that a chapter treats.

    Args:
        chapter: The chapter's file below ``book/``, without its ending.

    Raises:
        ValueError: a chapter that no row of the register names.
    """
    rows = [r for r in register().values() if r.chapter == chapter]
    if not chapter or not rows:
        raise unknown_name("chapter", chapter, sorted({r.chapter for r in register().values()} - {""}))
    return Statements(tuple((r, run(r.id)) for r in rows))
