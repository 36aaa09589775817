"""Figures with numbers that the text can name, and tables with one row of headings.

1. "Figure 1.2.3" stands before a caption: the chapter's number, then which figure of the page it is. The role
   {fig}`3` links to it, so that text names a figure by its place on the page and nobody types a number twice.
2. pandas writes the name of a table's first column into a row of headings of its own, in which all else is
   empty: it goes where a reader looks for it, above that column.
3. Formulas in the cells of such a table are typeset; MathJax leaves the outputs of cells alone otherwise.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from docutils import nodes

CAPTION = re.compile(
    r'<figure class="kl-figure([^"]*)">(.*?)(?:<figcaption>(.*?)</figcaption>)?</figure>', re.S
)
NAMED = re.compile(r'<a class="kl-fig" href="#figure-(\d+)">[^<]*</a>')
HEAD = re.compile(r"(?<=<thead>)(.*?)(?=</thead>)", re.S)
ROW = re.compile(r"<tr[^>]*>.*?</tr>", re.S)
FORMULAS = re.compile(r'(?<=<table border="1" class="dataframe)(?="(?:(?!</table>).)*?\\\()', re.S)
CELL = re.compile(r"(<t[hd][^>]*>)(.*?)(</t[hd]>)", re.S)


def role(
    name: str, raw: str, text: str, line: int, inliner: Any, *_: Any, **__: Any
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """{fig}`2`: a link to the second figure of the page."""
    if not re.fullmatch(r"[1-9]\d?", text):
        problem = inliner.reporter.error(
            f"got {raw}, wanted which figure of the page, as in {{fig}}`2`", line=line
        )
        return [inliner.problematic(raw, raw, problem)], [problem]
    link = f'<a class="kl-fig" href="#figure-{text}">Figure {text}</a>'
    return [nodes.raw("", link, format="html"), nodes.raw("", f"Figure {text}", format="latex")], []


def numbered(body: str, chapter: str) -> str:
    """HTML of a page whose figures have their numbers, in captions and in links.

    Args:
        body: The page.
        chapter: Its number, or "".

    Raises:
        ValueError: a link to a figure that the page has not.
    """
    count = itertools.count(1)

    def name(number: int | str) -> str:
        return f"Figure {chapter}.{number}" if chapter else f"Figure {number}"

    def figure(found: re.Match[str]) -> str:
        number = next(count)
        caption = f"<figcaption><span>{name(number)}.</span> {found[3] or ''}</figcaption>"
        return f'<figure class="kl-figure{found[1]}" id="figure-{number}">{found[2]}{caption}</figure>'

    body = CAPTION.sub(figure, body)
    figures = next(count) - 1
    wrong = [found[1] for found in NAMED.finditer(body) if int(found[1]) > figures]
    if wrong:
        raise ValueError(f"got {{fig}}`{wrong[0]}`, wanted one of the {figures} figures of the page")
    return NAMED.sub(lambda found: f'<a class="kl-fig" href="#figure-{found[1]}">{name(found[1])}</a>', body)


def one_row_of_headings(body: str) -> str:
    """HTML in which no table has a last row of headings with the names of its first columns alone."""

    def merged(found: re.Match[str]) -> str:
        rows = ROW.findall(found[0])
        if len(rows) < 2:
            return found[0]
        above, last = CELL.findall(rows[-2]), CELL.findall(rows[-1])
        names = [text.strip() for _, text, _ in last]
        named = next((i for i, text in enumerate(names) if not text), len(names))
        if not 0 < named < len(names) or any(names[named:]) or len(above) != len(last):
            return found[0]
        texts = [f"{a} / {b[1].strip()}" if b[1].strip() else a for a, b in zip(names, above, strict=True)]
        cells = [f"{o}{text}{c}" for text, (o, _, c) in zip(texts[:named], above[:named], strict=True)]
        cells += ["".join(c) for c in above[named:]]
        row = f"{rows[-2][: rows[-2].index('>') + 1]}{''.join(cells)}</tr>"
        return found[0].replace(rows[-1], "", 1).replace(rows[-2], row, 1)

    return HEAD.sub(merged, body)


def typeset(body: str) -> str:
    """HTML in which MathJax reads the tables that have formulas."""
    return FORMULAS.sub(" mathjax_process", body)


def connect(app: Any) -> None:
    """Add the role and the numbers."""
    app.add_role("fig", role)
    app.connect("html-page-context", in_page)


def in_page(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Number the figures of a page, and tidy its tables."""
    if app.builder.format != "html" or "body" not in context:
        return
    number = app.env.toc_secnumbers.get(pagename, {}).get("") or ()
    body = numbered(context["body"], ".".join(map(str, number)))
    context["body"] = typeset(one_row_of_headings(body))
