"""The statements of the papers, one row each: our words, its place and the chapter that treats it."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Row(NamedTuple):
    """A row of the register: one statement of one source, in our own words.

    ``chapter`` is the file below ``book/`` that treats it, without its ending; empty where none does.
    """

    id: str
    source: str
    location: str
    kind: str
    statement: str
    chapter: str


@cache
def register() -> dict[str, Row]:
    """The rows of ``register.csv`` by id, in the order of the sources."""
    text = files("kl_book.ledger.claims").joinpath("register.csv").read_text(encoding="utf-8")
    return {r["id"]: Row(**r) for r in csv.DictReader(text.splitlines())}
