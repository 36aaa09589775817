"""The built pages, in the order of the table of contents, as one page to print.

Each page keeps what stands in its article. Its ids get the page's own prefix, so that no two are alike, and
every link between pages becomes one within the page; a link to what is not printed (a listing of code, a
download) keeps its text only. Headings go one level down: parts are the first level.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag

# Of four drawings one is printed; controls have nothing to control on paper. Code that a page folds, because
# its figure is the point, stays on the page; everything else that is folded is printed open.
LEFT_OUT = (
    "script, style, .headerlink, .kl-filters, .kl-count, .kl-noprint, img.kl-dark, img.kl-narrow,"
    " details.above-input, .toctree-wrapper, button, noscript, template, .viewcode-link, .sd-tab-set > input"
)
NUMBER = re.compile(r'data-page="([^"]+)">000<')
ID_LISTS = ("aria-labelledby", "aria-describedby", "aria-controls", "for")


class Part(NamedTuple):
    """A caption of the table of contents and the paths of its pages, without suffix."""

    caption: str
    pages: list[str]


def parts(toc: Path) -> list[Part]:
    """The first page and the parts of _toc.yml, in order.

    Raises:
        ValueError: the file has no parts.
    """
    content = yaml.safe_load(toc.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not content.get("parts") or "root" not in content:
        raise ValueError(f"{toc} has no root with parts: wanted the table of contents of a book in parts")
    listed = [
        Part(p["caption"], [c["file"] for top in p["chapters"] for c in (top, *top.get("sections", []))])
        for p in content["parts"]
    ]
    listed[0] = Part(listed[0].caption, [content["root"], *listed[0].pages])
    return listed


def reading(listed: list[Part]) -> list[Part]:
    """Of the parts of the book those that one reads from first to last page: chapters and glossary."""
    chapters = [part for part in listed if part.caption.startswith(("Core", "Advanced"))]
    words = [page for part in listed for page in part.pages if page.endswith("/glossary")]
    return [*chapters, Part("Words", words)] if words else chapters


def anchor(number: int, fragment: str = "") -> str:
    """The id on the single page of an id of page `number`, or of the page itself."""
    return f"c{number:02d}" + (f"-{fragment}" if fragment else "")


def where(address: str, page: str, numbers: dict[str, int]) -> str | None:
    """Where a link of a page leads on the single page: as it was, `#anchor`, None if to nothing printed."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return address
    if parts.fragment.startswith("code="):  # for the editor of the pages, which paper has not
        return None
    target = page
    if parts.path:
        path = os.path.normpath(os.path.join(os.path.dirname(page), unquote(parts.path)))
        if not path.endswith(".html") or path.removesuffix(".html") not in numbers:
            return None
        target = path.removesuffix(".html")
    return "#" + anchor(numbers[target], unquote(parts.fragment))


def article(site: Path, page: str, numbers: dict[str, int]) -> Tag:
    """The article of one page, with its ids, links and headings as the single page needs them.

    Raises:
        ValueError: the page has no article.
    """
    soup = BeautifulSoup((site / f"{page}.html").read_text(encoding="utf-8"), "html.parser")
    found = soup.select_one("article.bd-article")
    if found is None:
        raise ValueError(f"{page}.html has no <article class='bd-article'>: is it a page of this book?")
    for element in found.select(LEFT_OUT):
        element.decompose()
    for element in found.select("[data-print]"):
        element.string = str(element["data-print"])
    number = numbers[page]
    for element in found.find_all(True):
        if element.get("id"):
            element["id"] = anchor(number, element["id"])
        for name in ID_LISTS:
            if element.get(name):
                value = element[name]
                words = value if isinstance(value, list) else value.split()
                element[name] = " ".join(anchor(number, word) for word in words)
        if element.name == "a" and element.get("href"):
            led = where(element["href"], page, numbers)
            if led is None:
                del element["href"]
            else:
                element["href"] = led
        if element.name == "img" and not urlsplit(element["src"]).scheme:
            element["src"] = os.path.normpath(
                os.path.join(site.name, os.path.dirname(page), unquote(element["src"]))
            )
            element.attrs.pop("loading", None)
        if re.fullmatch("h[1-5]", element.name):
            element.name = f"h{int(element.name[1]) + 1}"
        if element.name == "details" and "kl-row" not in element.get("class", []):
            element["open"] = ""
        classes = element.get("class", [])
        if "dropdown" in classes or "toggle" in classes:
            element["class"] = [c for c in classes if c not in ("dropdown", "toggle", "toggle-hidden")]
    # a link to a section leads to its heading: where pages break between the two, to the page that shows it
    for heading in found.select("section[id] > :is(h2, h3, h4, h5, h6)"):
        section = heading.parent
        if section is not None and section.get("id") and not heading.get("id"):
            heading["id"] = section["id"]
            del section["id"]
    found["id"] = anchor(number)
    found.name = "div"
    return found


def outline(chapter: Tag) -> tuple[str, list[tuple[str, str]]]:
    """A chapter's title, and the ids and titles of its sections, formulas as TeX left as they stand."""
    title = chapter.find("h2")
    sections = [
        (heading.get("id", ""), heading)
        for section in chapter.find_all("section")
        if (heading := section.find("h3", recursive=False)) is not None
    ]
    return (
        title.decode_contents() if title else "",
        [(identity, heading.decode_contents()) for identity, heading in sections],
    )


def head(site: Path, first: str) -> str:
    """Style sheets and the typesetter of formulas, from the first page."""
    soup = BeautifulSoup((site / f"{first}.html").read_text(encoding="utf-8"), "html.parser")
    kept = []
    for element in soup.select("link[rel=stylesheet], script"):
        name = "href" if element.name == "link" else "src"
        address = element.get(name, "")
        mathjax = "mathjax" in address.lower() or "MathJax" in (element.string or "")
        if element.name == "script" and not mathjax:
            continue
        if address:
            element[name] = os.path.normpath(
                os.path.join(site.name, os.path.dirname(first), address.split("?")[0])
            )
        kept.append(str(element))
    return "\n".join(kept)


def single_page(site: Path, listed: list[Part], title_page: str) -> tuple[str, dict[str, str]]:
    """The book, or some parts of it, as one page, to be written beside the folder of the site.

    Args:
        site: folder of the built pages.
        listed: the parts that are printed.
        title_page: HTML of what comes before the contents.

    Returns:
        The page, and for each chapter its anchor and its title in plain text. Where the contents name a page,
        the text is 000 in an element with the attribute data-page.
    """
    pages = [page for part in listed for page in part.pages]
    numbers = {page: number for number, page in enumerate(pages)}
    contents, bodies, titles = [], [], {}
    for position, part in enumerate(listed):
        contents.append(f'<p class="kl-part">{part.caption}</p><ul>')
        bodies.append(f'<h1 class="kl-part" id="part{position}">{part.caption}</h1>')
        for page in part.pages:
            chapter = article(site, page, numbers)
            title, sections = outline(chapter)
            identity = anchor(numbers[page])
            titles[identity] = " ".join(BeautifulSoup(title, "html.parser").get_text().split())
            contents.append(line(identity, title))
            if sections and not page.startswith("book/experiments"):
                contents.append("<ul>" + "".join(line(i, t) + "</li>" for i, t in sections) + "</ul>")
            contents.append("</li>")
            bodies.append(str(chapter))
        contents.append("</ul>")
    body = (
        f'<body class="kl-print"><header>{title_page}</header>'
        f'<nav class="kl-contents"><h1>Contents</h1>{"".join(contents)}</nav>'
        f'<main class="bd-article">{"".join(bodies)}</main></body>'
    )
    return document(site, pages[0], body), titles


def document(site: Path, first: str, body: str) -> str:
    """A page for print around a body; `first` is the page whose style sheets it takes."""
    return (
        '<!DOCTYPE html>\n<html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">'
        f"<title>What does your KL term optimize?</title>{head(site, first)}"
        f'<link rel="stylesheet" href="{site.name}/_static/kl_print.css"></head>{body}</html>'
    )


def sheet(site: Path, page: str) -> str:
    """One page alone, to print on one sheet; its links to other pages keep their text only."""
    only = article(site, page, {page: 0})
    return document(
        site, page, f'<body class="kl-print kl-sheet"><main class="bd-article">{only}</main></body>'
    )


def line(identity: str, title: str) -> str:
    """A line of the contents, its list item left open."""
    return f'<li><a href="#{identity}"><span>{title}</span><b data-page="{identity}">000</b></a>'


def listed(text: str, pages: dict[str, int]) -> dict[str, int]:
    """The pages of the anchors that the contents name; 0 for one that is nowhere."""
    return {name: pages.get(name, 0) for name in NUMBER.findall(text)}


def numbered(text: str, pages: dict[str, int]) -> str:
    """The single page with page numbers in its contents, where they are known."""
    return NUMBER.sub(lambda found: f'data-page="{found[1]}">{pages.get(found[1], "000")}<', text)
