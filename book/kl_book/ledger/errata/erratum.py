"""One correction of a source in words; its numbers, corrected form and counterexample stay in the check."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from kl_book.ledger.claims.rows import register
from kl_companion.checks import check_choice, unknown_name

CONSEQUENCES = {
    "result": "What changes a result or a training run",
    "derivation": "What changes a derivation or a description, and no result",
    "slip": "Signs, symbols and other slips of writing",
    "bibliography": "Bibliography",
}


class Erratum(NamedTuple):
    r"""A correction: rows of the register that one cause makes fail, with what a fair reader wants to know.

    Formulas stand in LaTeX between dollar signs. How much it matters in practice, the corrected form, the
    counterexample and the error come from the checks of the rows.

    Attributes:
        title: What is wrong, in a few words.
        rows: Ids of the rows, all of one source, in the order of the register.
        consequence: A key of `CONSEQUENCES`: what changes if the correction is made.
        printed: What is printed, in our own words, and where exactly.
        why: Why it cannot be right; of bibliography, what the cited work says.
        charitable: The reading under which it is right, or what was most likely meant.
    """

    title: str
    rows: tuple[str, ...]
    consequence: str
    printed: str
    why: str
    charitable: str

    @property
    def source(self) -> str:
        """The key of the source."""
        return register()[self.rows[0]].source


def checked(errata: Sequence[Erratum]) -> tuple[Erratum, ...]:
    """The corrections by consequence; within one consequence as they were given.

    Raises:
        ValueError: an empty text, an unknown consequence, an entry without rows or with rows of two sources,
            a row that the register does not hold or that two entries name, or rows that leave the order of
            the register.
    """
    for entry in errata:
        _check_entry(entry)
    ids = [*chain.from_iterable(e.rows for e in errata)]
    twice = [id for i, id in enumerate(ids) if id in ids[:i]]
    if twice:
        raise ValueError(f"row {twice[0]!r} stands in two errata, expected one")
    return tuple(sorted(errata, key=lambda e: list(CONSEQUENCES).index(e.consequence)))


def _check_entry(entry: Erratum) -> None:
    for name in ("title", "printed", "why", "charitable"):
        if not getattr(entry, name).strip():
            raise ValueError(f"erratum {entry.title!r} has no text {name!r}")
    check_choice("consequence", entry.consequence, tuple(CONSEQUENCES))
    if not entry.rows:
        raise ValueError(f"erratum {entry.title!r} has no row, expected at least one")
    places = [_place(id) for id in entry.rows]
    if places != sorted(places):
        raise ValueError(f"erratum {entry.title!r}: rows {entry.rows} are not in the register's order")
    sources = sorted({register()[id].source for id in entry.rows})
    if len(sources) > 1:
        raise ValueError(f"erratum {entry.title!r} has rows of {' and '.join(sources)}, expected one source")


def _place(id: str) -> int:
    ids = list(register())
    if id not in ids:
        raise unknown_name("row", id, ids)
    return ids.index(id)
