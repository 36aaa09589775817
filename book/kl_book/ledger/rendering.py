"""What the ledger's templates have in common: findings in letters or typeset, and where a row stands."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kl_book.ledger.claims.rows import register
from kl_book.ledger.claims.standard import NAMES, ONE_CASE, READINGS
from kl_book.ledger.claims.texts import letters, plain, typeset

FOLDER = "ledger"  # of the pages of statements, below that of the book's pages


@cache
def page_of(id: str) -> str:
    """Name of the page that shows a row: its source's, or one of the further pages of that."""
    source = register()[id].source
    ids = [row.id for row in register().values() if row.source == source]
    page = source
    for name, first in READINGS[source].pages.items():
        if ids.index(id) >= ids.index(first):
            page = name
    return page


def pages() -> dict[str, list[str]]:
    """The rows of every page of statements, in the order of the register."""
    rows: dict[str, list[str]] = {}
    for id in register():
        rows.setdefault(page_of(id), []).append(id)
    return rows


def anchor(id: str) -> str:
    """The anchor of a row on its page: a name that a selector of CSS may hold."""
    return "claim-" + re.sub(r"[^A-Za-z0-9-]", "_", id)


def address(id: str, folder: str = f"{FOLDER}/") -> str:
    """Address of a row, from a page beside ``folder``."""
    return f"{folder}{page_of(id)}.html#{anchor(id)}"


def render(template: str, **values: Any) -> Markup:
    """A template of the ledger with its values; text is escaped."""
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "plain": plain,
        "letters": letters,
        "typeset": lambda text: Markup(typeset(text)),
        "anchor": anchor,
        "address": address,
    }
    environment.globals |= {"names": NAMES, "one_case": ONE_CASE}
    return environment
