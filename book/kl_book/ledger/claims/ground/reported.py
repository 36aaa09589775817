"""Rows about training runs: what it would take to repeat them, and what can be computed without."""

from __future__ import annotations

from collections.abc import Callable

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.evidence import Evidence


def reported(id: str, needs: str, note: str | Callable[[], str] = "") -> None:
    """Register a row about runs: what they take, and what can be said without them."""

    def check() -> Evidence:
        return Evidence(needs=needs, note=note if isinstance(note, str) else note())

    claim(id)(check)
