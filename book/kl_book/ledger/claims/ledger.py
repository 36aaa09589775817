"""The ledger of checks: the sections loaded, and the check of one row run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from kl_book.ledger.claims.checks import CLAIMS, Claim, evidence
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.rows import register
from kl_companion.checks import unknown_name

# each name written out, so that the files behind the checks can be found by reading the code
_SOURCES: dict[str, Callable[[], object]] = {
    "tang2025pitfalls": lambda: import_module("kl_book.ledger.claims.tang2025pitfalls"),
    "wang2025choosing": lambda: import_module("kl_book.ledger.claims.wang2025choosing"),
    "shah2025comedy": lambda: import_module("kl_book.ledger.claims.shah2025comedy"),
    "summary2025pitfalls": lambda: import_module("kl_book.ledger.claims.summary2025pitfalls"),
    "emapg2026": lambda: import_module("kl_book.ledger.claims.emapg2026"),
    "yao2026future": lambda: import_module("kl_book.ledger.claims.yao2026future"),
    "ding2026misfires": lambda: import_module("kl_book.ledger.claims.ding2026misfires"),
    "vojnovic2025alignment": lambda: import_module("kl_book.ledger.claims.vojnovic2025alignment"),
    "zhang2025design": lambda: import_module("kl_book.ledger.claims.zhang2025design"),
    "zheng2025stabilizing": lambda: import_module("kl_book.ledger.claims.zheng2025stabilizing"),
}


def checks() -> dict[str, Claim]:
    """Every check by the id of its row: all sources are imported."""
    for load in _SOURCES.values():
        load()
    return CLAIMS


def run(id: str) -> Evidence:
    """Run the check of one row; a row that is read and not computed has the words of its record alone.

    Raises:
        ValueError: no such row, no check for it, words whose gaps are not those that the check fills, or a
            verdict that lacks what it must say (`Evidence.missing`).
    """
    rows = register()
    if id not in rows:
        raise unknown_name("claim", id, list(rows))
    row = rows[id]
    _SOURCES[row.source]()
    checked = row.check or id
    if checked not in CLAIMS and not rows[checked].needs:
        raise ValueError(f"claim {id!r} has no check")
    result = CLAIMS[checked].check() if checked in CLAIMS else evidence(checked, {}, {}, {})
    lacks = result.missing()
    if lacks:
        raise ValueError(f"claim {id!r}: {result.verdict}, expected {lacks}")
    if result.agrees_with not in (None, "proof") and result.agrees_with not in rows:
        raise unknown_name("row in agrees_with:", str(result.agrees_with), list(rows))
    return result
