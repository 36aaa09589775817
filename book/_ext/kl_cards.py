"""Cards: what a term means, which paper a citation is, what a function does, shown beside the word itself.

At build time the first use of a glossary term on a page, and of a public name in a section, becomes a link:
to the glossary, to the API. Each page carries the texts of its own cards in <template> elements, which are
neither shown nor searched; book/_static/kl_cards.js shows them. Without JavaScript the links remain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

from docutils import nodes
from kl_tex import inline_html
from sphinx import addnodes

GLOSSARY, API = "book/glossary", "book/api/"
# words of daily language, or of several meanings, that a dotted line would mark in the wrong places
UNMARKED = {"policy", "score", "head", "tail", "credit", "curvature", "audit", "lag", "reference policy"}
MARKED_PAGES = re.compile(r"book/(part\d+_\w+/|quickstart$|errata$|how_to_add$)")
CODE_PAGES = re.compile(r"book/(part\d+_\w+/|quickstart$|errata$|how_to_add$|notation$|glossary$)")
NOT_RUNNING = (
    nodes.reference,
    nodes.title,
    nodes.table,
    nodes.caption,
    nodes.raw,
    nodes.footnote,
    nodes.citation,
    addnodes.desc,
    addnodes.glossary,
    addnodes.pending_xref,
)
NOT_CODE = (nodes.reference, nodes.title, addnodes.pending_xref, addnodes.desc)
Cards = dict[str, "Card"]


class Card(NamedTuple):
    """What a link shows: the page and anchor that it leads to, and HTML."""

    docname: str
    anchor: str
    html: str


def glossary(env: Any) -> Cards:
    """The card of every term of the glossary, by the term as it is written there."""
    found = {}
    for item in env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
        definition = next(c for c in item.children if isinstance(c, nodes.definition))
        said = inline_html(next(definition.findall(nodes.paragraph)))
        terms = [c for c in item.children if isinstance(c, nodes.term)]
        for term in terms:
            name = term.astext()
            found[name] = Card(GLOSSARY, term["ids"][0], f"<b>{escape(name)}</b> {said}")
    return found


def code_of_terms(env: Any) -> dict[str, list[str]]:
    """The code that the glossary names for a term."""
    found = {}
    for item in env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
        names = [
            literal.astext()
            for p in list(item.findall(nodes.paragraph))[1:]
            for literal in p.findall(nodes.literal)
        ]
        for term in (c for c in item.children if isinstance(c, nodes.term) and names):
            found[term.astext()] = names
    return found


def functions(env: Any) -> Cards:
    """The card of every public name that a page of the API documents, by its short name."""
    documented = {
        anchor: (page, desc[-1])
        for page in sorted(env.all_docs)
        if page.startswith(API)
        for desc in env.get_doctree(page).findall(addnodes.desc)
        for anchor in desc[0].get("ids", [])
    }
    if not documented:  # a book without an API
        return {}
    from kl_book.names import public_names

    found = {}
    for name, room in public_names().items():
        anchor = f"{room}.{name}"
        if anchor in documented:
            page, content = documented[anchor]
            first = next((p for p in content.findall(nodes.paragraph)), None)
            text = f" {inline_html(first)}" if first is not None else ""
            found[name] = Card(page, anchor, f"<code>{name}</code>{text}")
    return found


def references(env: Any) -> Cards:
    """The card of every entry of the bibliography, by the anchor of the entry."""
    domain = env.get_domain("cite")
    found = {}
    for citation in domain.citations:
        said = re.sub(r"</?a\b[^>]*>", "", citation.formatted_entry.text.render_as("html"))
        docname = citation.bibliography_key.docname
        found[citation.citation_id] = Card(docname, citation.citation_id, said)
    return found


def pattern(terms: list[str]) -> re.Pattern[str]:
    """A pattern for any of these terms as a word of its own, the longest first, also in the plural."""
    words = []
    for index, term in sorted(enumerate(terms), key=lambda item: len(item[1]), reverse=True):
        first = f"[{term[0].upper()}{term[0]}]" if term[0].islower() else re.escape(term[0])
        words.append(f"(?P<t{index}>{first}{re.escape(term[1:])})")
    return re.compile(rf"(?<![\w-])(?:{'|'.join(words)})s?(?![\w+-])")


def running_texts(doctree: nodes.document) -> Iterator[nodes.Text]:
    """Texts of paragraphs, outside of titles, links, code, formulas and tables."""
    for paragraph in doctree.findall(nodes.paragraph):
        if _within(paragraph, NOT_RUNNING):
            continue
        for text in list(paragraph.findall(nodes.Text)):
            if not _within(text, (*NOT_RUNNING, nodes.literal, nodes.math, nodes.strong)):
                yield text


def mark_terms(app: Any, doctree: nodes.document, docname: str, cards: Cards) -> Cards:
    """Link the first use of each term; the cards used, by the address in the link."""
    terms = [term for term in cards if term not in UNMARKED]
    wanted, used, seen = pattern(terms), {}, set()
    for text in running_texts(doctree):
        words, at = text.astext(), 0
        pieces: list[nodes.Node] = []
        for match in wanted.finditer(words):
            card = cards[terms[int(str(match.lastgroup)[1:])]]
            said = card.html.partition("</b>")[2]
            if said in seen:  # the term, or another name of the same entry
                continue
            seen.add(said)
            link = _link(app, docname, card, match[0], "kl-term")
            used[link["refuri"]] = card
            pieces += [nodes.Text(words[at : match.start()]), link]
            at = match.end()
        if pieces:
            text.parent.replace(text, [*pieces, nodes.Text(words[at:])])
    return used


def mark_code(app: Any, doctree: nodes.document, docname: str, cards: Cards) -> Cards:
    """Link the first use of each public name in each section; the cards used, by the address in the link."""
    used, seen = {}, set()
    for literal in list(doctree.findall(nodes.literal)):
        name = re.match(r"(?:kl_companion\.)?(\w+)(?:\(.*\))?$", literal.astext())
        card = cards.get(name[1]) if name else None
        if card is None or _within(literal, NOT_CODE):
            continue
        key = (id(_section(literal)), card.anchor)
        if key in seen:
            continue
        seen.add(key)
        link = _link(app, docname, card, "", "kl-code")
        literal.parent.replace(literal, link)
        link += literal
        used[link["refuri"]] = card
    return used


def add_code(
    app: Any, doctree: nodes.document, docname: str, cards: Cards, codes: dict[str, list[str]]
) -> Cards:
    """Below a definition or proposition: the code of the terms in its title; the cards used, by address."""
    used: Cards = {}
    terms = list(codes)
    any_term = pattern(terms)
    for statement in doctree.findall(nodes.Admonition):
        title = next((c for c in statement.children if isinstance(c, nodes.title)), None)  # type: ignore[attr-defined]
        if title is None or "proof" not in statement["classes"]:  # type: ignore[index]
            continue
        found = [terms[int(str(m.lastgroup)[1:])] for m in any_term.finditer(title.astext())]
        names = dict.fromkeys(name for term in found for name in codes[term] if name in cards)
        line = nodes.paragraph("", "In code: ", classes=["kl-in-code"])
        for i, name in enumerate(names):
            link = _link(app, docname, cards[name], "", "kl-code")
            link += nodes.literal(name, name)
            line += [nodes.Text(", "), link] if i else [link]
            used[link["refuri"]] = cards[name]
        if names:
            statement.append(line)  # type: ignore[attr-defined]
    return used


def mark_citations(
    app: Any, doctree: nodes.document, docname: str, cards: dict[str, Card]
) -> dict[str, Card]:
    """Give each citation its card in place of the browser's own tooltip; the cards used, by address."""
    used = {}
    for link in doctree.findall(nodes.reference):
        card = cards.get(link.get("refuri", "").partition("#")[2])
        if card is not None and "reftitle" in link and link["refuri"] == _address(app, docname, card):
            del link["reftitle"]
            link["classes"].append("kl-cite")
            used[link["refuri"]] = card
    return used


def cards_of(app: Any) -> Any:
    """Return all cards of the book by their kind, and the code of terms; they are made once in a build."""
    env = app.env
    if not hasattr(app, "kl_cards"):
        app.kl_cards = {
            "terms": glossary(env) if GLOSSARY in env.all_docs else {},
            "functions": functions(env),
            "references": references(env),
            "codes": code_of_terms(env) if GLOSSARY in env.all_docs else {},
        }
    return app.kl_cards


def add_cards(app: Any, doctree: nodes.document, docname: str) -> None:
    """Mark a page's words, and keep the cards that they need with its doctree."""
    if app.builder.name != "html":
        return
    cards = cards_of(app)
    used = mark_citations(app, doctree, docname, cards["references"])
    if CODE_PAGES.match(docname):
        used |= add_code(app, doctree, docname, cards["functions"], cards["codes"])
        used |= mark_code(app, doctree, docname, cards["functions"])
    if MARKED_PAGES.match(docname):
        used |= mark_terms(app, doctree, docname, cards["terms"])
    doctree["kl_cards"] = used


def write_cards(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Put the cards behind the text of their page."""
    used = doctree.get("kl_cards") if doctree is not None else None
    if used and "body" in context:
        templates = "".join(
            f'<template class="kl-card-text" data-for="{escape(uri)}">{card.html}</template>'
            for uri, card in used.items()
        )
        context["body"] += templates


def _address(app: Any, docname: str, card: Card) -> str:
    return f"{app.builder.get_relative_uri(docname, card.docname)}#{card.anchor}"


def _link(app: Any, docname: str, card: Card, text: str, kind: str) -> nodes.reference:
    return nodes.reference("", text, internal=True, refuri=_address(app, docname, card), classes=[kind])


def _within(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    at = node.parent
    while at is not None:
        if isinstance(at, kinds):
            return True
        at = at.parent
    return False


def _section(node: nodes.Node) -> nodes.Node | None:
    while node is not None and not isinstance(node, nodes.section):
        node = node.parent
    return node
