"""What makes the pages good to read: folds, grades, labels of folded code, previews of the next page, search.

1. Whatever has the class `dropdown` becomes <details>, which a keyboard, a printer and a screen reader know.
2. Exercises of the classes `grade-1`, `grade-2`, `grade-3` say what they ask for.
3. "Show the code of this figure" stands where the figure is the point.
4. The question of a chapter, the bold paragraph below its title, is shown in links to the previous and next.
"""

from __future__ import annotations

import re
from typing import Any

import kl_cards
import kl_links
import kl_search
from docutils import nodes
from kl_tex import inline_html
from myst_nb.sphinx_ import HideCodeCellNode

GRADES = {"grade-1": "warm-up", "grade-2": "pen and paper", "grade-3": "project"}
FOLD = re.compile(r'<div\b[^>]*\bclass="[^"]*\badmonition\b[^"]*"[^>]*>')
TITLE = re.compile(r'\s*<p class="admonition-title"([^>]*)>(.*?)</p>', re.DOTALL)
PROOF = re.compile(r"\s*<p>Proof\. ")
# every proof of a page has the id "proof", and every statement and exercise "...-content"
SAME_IDS = re.compile(
    r'(<div class="proof[\w -]*\badmonition\b)" id="proof">|(<section(?: class="[\w-]+")?) id="\w+-content">'
)


def unique_ids(body: str) -> str:
    """HTML without the ids that sphinx-proof and sphinx-exercise give to several elements of a page."""
    return SAME_IDS.sub(lambda m: f'{m[1]} kl-proof">' if m[1] else f"{m[2]}>", body)


def fold(body: str) -> str:
    """HTML with every admonition of the class `dropdown` as <details>, its title as <summary>.

    Raises:
        ValueError: such an admonition has no title, or is not closed.
    """
    for opening in reversed(list(FOLD.finditer(body))):
        if not re.search(r'class="[^"]*\bdropdown\b', opening[0]):
            continue
        title, end = TITLE.match(body, opening.end()), _closing(body, opening.end())
        proof = PROOF.match(body, opening.end())  # a proof has no title, but begins with its name
        if end is None or not (title or proof):
            raise ValueError(f"got {opening[0]!r} without a title or an end, wanted an admonition")
        tag = re.sub(r"\bdropdown\b", "kl-fold", opening[0].replace("<div", "<details", 1))
        words = re.sub(r"</?a\b[^>]*>", "", title[2]) if title else "Proof"  # a summary is a button: no link
        summary = f'<summary class="admonition-title"{title[1] if title else ""}>{words}</summary>'
        inside = f"<p>{body[proof.end() : end]}" if proof else body[title.end() if title else 0 : end]
        body = f"{body[: opening.start()]}{tag}{summary}{inside}</details>{body[end + len('</div>') :]}"
    return body


def _closing(body: str, at: int) -> int | None:
    """Where the </div> begins that closes a <div> opened before `at`."""
    depth = 1
    for tag in re.compile(r"<(/?)div\b").finditer(body, at):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return tag.start()
    return None


def name_grades(doctree: nodes.document) -> None:
    """Write behind the title of an exercise what it asks for."""
    for node in doctree.findall(
        lambda n: isinstance(n, nodes.Element) and "exercise" in n.get("classes", [])
    ):
        for grade, word in GRADES.items():
            title = next((c for c in node.children if isinstance(c, nodes.title)), None)
            if grade in node["classes"] and title is not None:
                title += [nodes.Text(" "), nodes.inline("", word, classes=["kl-grade", f"kl-{grade}"])]


def name_folded_code(doctree: nodes.document) -> None:
    """Say what the folded code of a cell makes: a figure, a table, or no more than code."""
    for node in doctree.findall(HideCodeCellNode):
        whole = node.parent is None  # the fold of a whole cell, which MyST-NB puts around it, has no parent
        beside = node.children if whole else [x for x in node.parent.children if x is not node]
        shown = "".join(raw.astext() for output in beside for raw in output.findall(nodes.raw))
        what = "figure" if "<figure" in shown else "table" if "<table" in shown else ""
        name = f"the {what or 'cell'}" if whole else f"the code of this {what}" if what else "the code"
        node["prompt_show"], node["prompt_hide"] = f"Show {name}", f"Hide {name}"


def visit_folded_code(self: Any, node: HideCodeCellNode) -> None:
    """Like MyST-NB, without its aria-label, which would tell some readers nothing of what the fold holds."""
    prompts = (("collapsed", node["prompt_show"]), ("expanded", node["prompt_hide"]))
    spans = "".join(f'<span class="{name}">{self.encode(text)}</span>' for name, text in prompts)
    self.body.append(f'<details class="hide {" ".join(node["classes"])}"><summary>{spans}</summary>')


def depart_folded_code(self: Any, node: HideCodeCellNode) -> None:
    """Close it."""
    self.body.append("</details>")


def keep_question(app: Any, doctree: nodes.document) -> None:
    """Keep the bold paragraph below a page's title with the page's metadata."""
    section = next(doctree.findall(nodes.section), nodes.section())
    paragraph = next((c for c in section.children if isinstance(c, nodes.paragraph)), nodes.paragraph())
    parts = [child for child in paragraph.children if child.astext().strip()]
    if len(parts) == 1 and isinstance(parts[0], nodes.strong):
        app.env.metadata[app.env.docname]["kl_question"] = inline_html(parts[0])


def prepare(app: Any, doctree: nodes.document, docname: str) -> None:
    """Everything that is done to a page's tree before it is written."""
    name_grades(doctree)
    if app.builder.format == "html":
        name_folded_code(doctree)
    if app.builder.name == "html":
        kl_links.add_to_api(app, doctree, docname)
        kl_cards.add_cards(app, doctree, docname)


def finish(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Everything that is done to a page's HTML."""
    questions = {
        name: meta["kl_question"] for name, meta in app.env.metadata.items() if "kl_question" in meta
    }
    if "body" in context:
        context["body"] = fold(unique_ids(context["body"]))
        kl_links.add_to_ledger(app, pagename, context)
    for side in ("prev", "next"):
        page = context.get(side)
        docname = _docname(pagename, page["link"]) if page else ""
        if docname in questions:
            title = f'{page["title"]}<span class="kl-question">{questions[docname]}</span>'
            context[side] = {**page, "title": title}


def _docname(pagename: str, link: str) -> str:
    """The page that a relative link of another page leads to."""
    parts = pagename.split("/")[:-1]
    for part in link.split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts).removesuffix(".html")


def write_all_again(app: Any, env: Any, docnames: list[str]) -> None:
    """Remember that what other pages quote is read again."""
    quoted = (kl_cards.GLOSSARY, kl_cards.API, "book/references")
    app.kl_write_all = any(name.startswith(quoted) for name in docnames)


def pages_to_write(app: Any, env: Any) -> list[str]:
    """Cards stand on all pages: a changed glossary is written everywhere."""
    return sorted(env.found_docs) if getattr(app, "kl_write_all", False) else []


def setup(app: Any) -> dict[str, Any]:
    """Connect everything to Sphinx's events."""
    app.add_node(HideCodeCellNode, override=True, html=(visit_folded_code, depart_folded_code))
    app.connect("doctree-read", keep_question)
    app.connect("env-before-read-docs", write_all_again)
    app.connect("env-updated", pages_to_write)
    app.connect("doctree-resolved", prepare)
    app.connect("html-page-context", finish)
    app.connect("html-page-context", kl_cards.write_cards)
    for name in ("kl_cards.js", "kl_tables.js", "kl_reading.js"):
        app.add_js_file(name)
    app.add_css_file("kl_reading.css")
    kl_search.connect(app)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
