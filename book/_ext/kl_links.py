"""From a function to the chapters that use it and the statements that its code checks, and back.

Nothing of this is typed in: chapters are read for what they import, checks for the names in their code.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import kl_cards
from docutils import nodes
from sphinx import addnodes

LEDGER = "book/ledger"
PAPERS = f"{LEDGER}/"
FEW = 6  # links that are shown; more of them fold


@cache
def imported(notebook: str) -> set[str]:
    """Public names of the package that the code of a notebook imports.

    Args:
        notebook: The text of the file.
    """
    found = set()
    for cell in json.loads(notebook)["cells"]:
        if cell["cell_type"] != "code":
            continue
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kl_companion":
                found |= {alias.name for alias in node.names}
    return found


@cache
def names_in_checks() -> dict[str, frozenset[str]]:
    """The identifiers in the code of each check of the ledger, by the id of its row."""
    from kl_book.ledger.claims.ledger import checks
    from kl_book.ledger.claims.listing import source_of

    code = {id: source_of(claim.generator) for id, claim in checks().items()}
    return {id: frozenset(re.findall(r"[A-Za-z_]\w*", text)) for id, text in code.items()}


def add_to_api(app: Any, doctree: nodes.document, docname: str) -> None:
    """Below each public name: the chapters that import it, the rows of the ledger whose checks name it."""
    env = app.env
    if not docname.startswith(kl_cards.API) or LEDGER not in env.all_docs:
        return
    from kl_book.ledger.rendering import address

    chapters = {
        name: imported(Path(env.doc2path(name)).read_text(encoding="utf-8"))
        for name in env.all_docs
        if re.match(r"book/part\d", name) and str(env.doc2path(name)).endswith(".ipynb")
    }
    cards = {card.anchor: name for name, card in kl_cards.cards_of(app)["functions"].items()}
    ledger = app.builder.get_relative_uri(docname, LEDGER).replace("ledger.html", "ledger/")
    for desc in doctree.findall(addnodes.desc):
        name = next((cards[a] for a in desc[0].get("ids", []) if a in cards), None)
        if name is None:
            continue
        pages = [
            (app.builder.get_relative_uri(docname, page), env.titles[page].astext())
            for page in sorted(chapters)
            if name in chapters[page]
        ]
        rows = [(address(id, ledger), id) for id, names in names_in_checks().items() if name in names]
        html = _line("In the book", pages, "chapters") + _line("In the ledger", rows, "statements")
        if html:
            desc[-1] += nodes.raw("", f'<div class="kl-backlinks">{html}</div>', format="html")


def _line(label: str, links: list[tuple[str, str]], what: str) -> str:
    if not links:
        return ""
    listed = ", ".join(f'<a href="{escape(uri)}">{escape(text)}</a>' for uri, text in links)
    if len(links) <= FEW:
        return f"<p>{label}: {listed}</p>"
    return f"<details><summary>{label}: {len(links)} {what}</summary><p>{listed}</p></details>"


def add_to_ledger(app: Any, pagename: str, context: dict[str, Any]) -> None:
    """In each row of the ledger: the API's entry of each public name in the code of its check."""
    if not pagename.startswith(PAPERS):
        return
    from kl_book.ledger.rendering import anchor

    uri = app.builder.get_relative_uri
    links = {
        name: f'<a href="{uri(pagename, card.docname)}#{card.anchor}"><code>{name}</code></a>'
        for name, card in kl_cards.cards_of(app)["functions"].items()
    }
    rows = {anchor(id): sorted(names & set(links)) for id, names in names_in_checks().items()}
    pieces = re.split(r'(?=<details class="kl-row" id=")', context["body"])
    for at, piece in enumerate(pieces):
        found = re.match(r'<details class="kl-row" id="([^"]+)"', piece)
        names = rows.get(found[1], []) if found else []
        if names:
            item = f"<dt>Functions</dt><dd>{', '.join(links[name] for name in names)}</dd>"
            before, end, after = piece.rpartition("</dl></details>")
            pieces[at] = f"{before}{item}{end}{after}"
    context["body"] = "".join(pieces)
