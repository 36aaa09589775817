"""The book's search: what it looks through, written beside the built pages as one file.

Every section of a page is an entry: its heading, its text without formulas, and its code apart. So are the
terms of the glossary and the names on the pages of the API. What people type who look for a page is in
`kl_search.yml`. A reader's browser makes an index of all with MiniSearch when somebody searches
(`_static/kl_search.js`); where that was not fetched (`kl_npm`), Sphinx's own search stays.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import kl_npm
import yaml
from docutils import nodes
from sphinx import addnodes

ENTRIES, LIBRARY, SCRIPT = "kl_entries.js", "minisearch.js", "kl_search.js"
SPHINX = re.compile(r'\s*<script src="[^"]*(?:searchtools|language_data|searchindex)\.js[^"]*"></script>')
MOST, CODE = 4000, 500  # characters of text and of code that are kept: lists would outweigh the rest
WORDS = Path(__file__).with_suffix(".yml")
_NAMED = (addnodes.desc, addnodes.glossary)
_SILENT = (nodes.math, nodes.math_block, nodes.comment, nodes.system_message, nodes.title, *_NAMED)


class Entry(NamedTuple):
    """Something that a search can find.

    Attributes:
        page: The page, from the root of the built pages.
        anchor: Where on it, or "" at its top.
        title: Of the page.
        heading: Of the section, a term, or a name; "" at the top of a page.
        text: Its text, without formulas and code.
        code: Its code.
        words: What people type who look for the page; "" below its top.
    """

    page: str
    anchor: str
    title: str
    heading: str
    text: str
    code: str
    words: str = ""


@cache
def typed() -> dict[str, str]:
    """Of pages, what people type who look for them."""
    found: dict[str, str] = yaml.safe_load(WORDS.read_text(encoding="utf-8"))
    return found


def entries(doctree: nodes.document, page: str) -> Iterator[Entry]:
    """What a search can find on a page, as it was read."""
    title = _plain(next((t.astext() for t in doctree.findall(nodes.title)), page))
    for section in doctree.findall(nodes.section):
        if section["ids"] and isinstance(section.parent, nodes.section | nodes.document):
            top = isinstance(section.parent, nodes.document)
            text, code = [], []
            for kind, part in _parts(section):
                (code if kind == "code" else text).append(part)
            heading = "" if top else next((c.astext() for c in section if isinstance(c, nodes.title)), "")
            anchor = "" if top else section["ids"][0]
            words = typed().get(page, "") if top else ""
            said = _plain(" ".join(text)), _plain(" ".join(code))[:CODE], words
            if heading != "Checks":  # asserts, which nobody looks for
                yield Entry(page, anchor, title, _plain(heading), *said)
    for item in doctree.findall(nodes.definition_list_item):
        if isinstance(item.parent.parent, addnodes.glossary):
            said = _plain(" ".join(part for kind, part in _parts(item[-1]) if kind == "text"))
            for term in item.findall(nodes.term):
                yield Entry(page, term["ids"][0], title, _plain(term.astext()), said, "")
    for name in doctree.findall(addnodes.desc_signature):
        if name["ids"]:
            said = _plain(name.parent[-1].astext())
            yield Entry(page, name["ids"][0], title, name["ids"][0].rpartition(".")[2], said, "")


def _parts(node: nodes.Node) -> Iterator[tuple[str, str]]:
    """Pieces of text and of code of a section, without those of the sections in it."""
    for child in node.children:
        if isinstance(child, nodes.section) and child["ids"] and isinstance(node, nodes.section):
            continue
        if isinstance(child, _SILENT):
            continue
        if isinstance(child, addnodes.pending_xref) and not child.get("refexplicit"):
            continue  # it has no words yet, but the name of a label
        if isinstance(child, nodes.literal_block):
            yield "code", child.astext()
        elif isinstance(child, nodes.raw):
            if child["format"] == "html":
                yield "text", html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", child.astext()))
        elif isinstance(child, nodes.Text):
            yield "text", child.astext()
        elif isinstance(child, nodes.container) and child.get("nb_element") == "mime_bundle":
            yield from _parts(_shown(child))
        else:
            yield from _parts(child)


def _shown(bundle: nodes.container) -> nodes.Node:
    """What a page shows of an output that comes in several forms."""
    forms = {child.get("mime_type"): child for child in bundle.children if isinstance(child, nodes.Element)}
    return forms.get("text/html") or forms.get("text/plain") or nodes.container()


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:MOST]


def keep(app: Any, doctree: nodes.document) -> None:
    """Remember what a search can find on a page that was read."""
    env = app.env
    env.note_dependency(str(WORDS))
    env.kl_entries = getattr(env, "kl_entries", {})
    env.kl_entries[env.docname] = [tuple(e) for e in entries(doctree, env.docname)]


def forget(app: Any, env: Any, docname: str) -> None:
    """Forget a page that is read again, or is no more."""
    getattr(env, "kl_entries", {}).pop(docname, None)


def statements(pages: set[str]) -> Iterator[Entry]:
    """Every statement of the ledger: its words, its formulas in letters, and its place in the paper."""
    from kl_book.ledger.claims.rows import register
    from kl_book.ledger.claims.standard import NAMES
    from kl_book.ledger.claims.texts import letters, plain
    from kl_book.ledger.rendering import FOLDER, anchor, page_of

    for id, row in register().items():
        page = f"book/{FOLDER}/{page_of(id)}"
        if page in pages:
            place = f"{NAMES[row.source]}, {row.location}"
            text = f"{plain(row.statement)}. {letters(row.correction)}"
            yield Entry(page, anchor(id), place, id, _plain(text), "")


def write(app: Any, exception: Exception | None) -> None:
    """Write what a search looks through, and the library beside it."""
    if exception is not None or app.builder.format != "html" or not kl_npm.MINISEARCH.present():
        return
    out = Path(app.outdir)
    numbers = {
        name: ".".join(map(str, own[""])) for name, own in app.env.toc_secnumbers.items() if own.get("")
    }
    pages = getattr(app.env, "kl_entries", {})
    every = [entry for _, own in sorted(pages.items()) for entry in own]
    every += [tuple(entry) for entry in statements(set(pages))]
    index = json.dumps({"entries": every, "numbers": numbers}, ensure_ascii=False)
    (out / ENTRIES).write_text(f"window.klSearch = {index};\n", encoding="utf-8")
    shutil.copy2(kl_npm.MINISEARCH.kept()[0], out / "_static" / LIBRARY)
    page = out / "search.html"  # its template loads Sphinx's search, which would write results too
    if page.is_file():
        text = SPHINX.sub("", page.read_text(encoding="utf-8"))
        if ENTRIES not in text:
            text = text.replace("</head>", f'<script defer src="{ENTRIES}"></script></head>', 1)
        page.write_text(text, encoding="utf-8")


def in_page(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Load what searches on the page of the search."""
    if pagename == "search" and kl_npm.MINISEARCH.present():
        for name in (LIBRARY, SCRIPT):
            app.add_js_file(name, loading_method="defer")


def connect(app: Any) -> None:
    """Connect to Sphinx's events."""
    app.connect("doctree-read", keep)
    app.connect("env-purge-doc", forget)
    app.connect("html-page-context", in_page)
    app.connect("build-finished", write)
