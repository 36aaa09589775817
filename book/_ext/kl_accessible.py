"""Written pages, mended where theme and extensions leave out what a screen reader or a keyboard needs.

The theme's templates and the tables of pandas cannot be told to write this, so it is done on the text of the
pages, once each. tests/support/site/accessibility.py asks axe-core about the result.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from kl_lines import held

# Written by a macro of the theme; the fonts of the style sheet have the same icons (kl_light.py).
ICONS = re.compile(r'\s*<script src="[^"]*scripts/fontawesome\.js[^"]*"></script>')


# What stands beside the text (title, search, contents) is one region with a name.
SIDEBAR = re.compile(r'<(?:div|dialog) (?![^>]*role=)(?=[^>]*\bclass="bd-sidebar-primary)')
# Roles that a list of references no longer has, or that its entries do not fit.
REFERENCES = re.compile(r' role="doc-biblioentry"| role="list"(?= class="citation-list")')
EMPTY = re.compile(r"<th(?P<rest>\s[^>]*)?>(?:\s|&nbsp;)*</th>")
# One id for every proof of a page, which nothing links to.
SPY = ' data-bs-spy="scroll" data-bs-target=".bd-toc-nav"'
UNNAMED = '<summary><span class="toctree-toggle"'
REPEATED = re.compile(r' id="(?:proof|(?:proof|exercise|solution)-content)"')


def mended(text: str) -> str:
    """The text of a page with everything below; of a page that is mended already, the same text."""
    text = ICONS.sub("", text)
    text = watched(text)
    text = SIDEBAR.sub(lambda found: f'{found[0]}role="region" aria-label="Contents of the book" ', text)
    text = REPEATED.sub("", REFERENCES.sub("", text))
    text = text.replace(UNNAMED, UNNAMED.replace("<summary>", '<summary aria-label="Pages below this one">'))
    # an empty cell above the names of rows is no header
    return EMPTY.sub(lambda found: f"<td{found['rest'] or ''}></td>", text)


def watched(text: str) -> str:
    """The script that marks the section in view gets the page's contents to look at, where there are any.

    The theme names a list that no page has; the script then reads every link of the page as a section's, and
    fails at the first whose fragment is none.
    """
    there = ' data-bs-spy="scroll" data-bs-target="#pst-page-toc-nav"'
    return text.replace(SPY, there if 'id="pst-page-toc-nav"' in text else "")


def nested(text: str) -> str:
    """The list of modules with each inner list inside the entry that it belongs to."""
    soup = BeautifulSoup(text, "html.parser")
    for inner in soup.select("ul > ul"):
        before = inner.find_previous_sibling("li")
        if before is not None:
            before.append(inner.extract())
        else:
            inner.unwrap()
    return str(soup)


def finish(app: Any, exception: Exception | None) -> None:
    """Mend every page that was written, and hold its lines together."""
    if exception is not None or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        better = held(mended(text))
        if page.parent.name == "_modules" and page.name == "index.html":
            better = nested(better)
        if better != text:
            page.write_text(better, encoding="utf-8")
