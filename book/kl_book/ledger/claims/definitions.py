"""The standard of judgement, and what was read of each source: terms with an explanation each, for a page."""

from __future__ import annotations

from collections.abc import Mapping

from kl_book.ledger.claims.standard import READINGS, STANDARD
from kl_book.ledger.rendering import render


class Definitions:
    """Terms with an explanation each, as a definition list or as lines."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self.entries = dict(entries)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.entries.items())

    def _repr_html_(self) -> str:
        return render("definitions.html", entries=list(self.entries.items()))


def standard() -> Definitions:
    """The standard of judgement, rule by rule."""
    return Definitions({rule.name: rule.text for rule in STANDARD})


def readings(source: str | None = None) -> Definitions:
    """What was read of each source, or of one, and what the copy lacked."""
    chosen = {key: s for key, s in READINGS.items() if source in (None, key)}
    return Definitions({s.name: f"{s.version}. Not in the copy: {s.lacks}." for s in chosen.values()})
