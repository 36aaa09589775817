"""What a printed book must have: a bookmark for every chapter, links that lead somewhere, text to copy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, Destination, IndirectObject, NameObject, TextStringObject

FEWEST_LETTERS = 200  # on an average page; a book of pictures has none


def entries(outline: list[Any], level: int = 0) -> Iterator[tuple[int, Destination]]:
    """Level and destination of every bookmark."""
    for entry in outline:
        if isinstance(entry, list):
            yield from entries(entry, level + 1)
        else:
            yield level, entry


def plain(text: str) -> str:
    """A title as letters and digits only: spaces and soft hyphens differ between page and bookmark."""
    return re.sub(r"\W+", "", text).lower()


def said_twice(once: str, said: str) -> bool:
    """Whether a text is another one of which pieces were repeated right after they were said."""

    @cache
    def ends(i: int, j: int) -> bool:
        if j == len(said):
            return i == len(once)
        if i < len(once) and once[i] == said[j] and ends(i + 1, j + 1):
            return True
        pieces = range(1, min(i, len(said) - j) + 1)
        return any(once[i - n : i] == said[j : j + n] and ends(i, j + n) for n in pieces)

    return len(once) < len(said) <= 2 * len(once) and ends(0, 0)


def mend_bookmarks(path: Path, headings: Iterable[str]) -> int:
    """Write once what the browser wrote twice, and count it.

    Chromium 156 repeats lines of a heading that it moved to the next page: "2. 2. A titleA title".

    Args:
        path: The printed file; it is changed in place.
        headings: The headings of the page.
    """
    titles = {plain(title): " ".join(title.split()) for title in headings}
    writer, mended = PdfWriter(path, incremental=True), 0
    for mark in _marks(writer.root_object.get("/Outlines", {})):
        said = plain(str(mark["/Title"]))
        for once in titles if said not in titles else ():
            if said[:1] == once[:1] and said_twice(once, said):
                mark[NameObject("/Title")] = TextStringObject(titles[once])
                mended += 1
                break
    if mended:
        new = path.with_suffix(".mended")
        writer.write(new)
        os.replace(new, path)
    return mended


def _marks(parent: Any) -> Iterator[Any]:
    """The bookmarks below an outline or a bookmark, as they stand in the file."""
    mark = parent.get("/First")
    while mark is not None:
        found = mark.get_object()
        yield found
        yield from _marks(found)
        mark = found.get("/Next")


def pages_of_anchors(path: Path) -> dict[str, int]:
    """The page number, counted from one, on which each anchor that something links to stands."""
    reader = PdfReader(path)
    found = reader.named_destinations
    return {name.removeprefix("/"): reader.get_destination_page_number(d) + 1 for name, d in found.items()}


def dead_links(reader: PdfReader) -> list[str]:
    """Links within the file that name no place in it."""
    names = {name.removeprefix("/") for name in reader.named_destinations}
    objects = {page.indirect_reference.idnum for page in reader.pages if page.indirect_reference}
    dead = []
    for number, page in enumerate(reader.pages, 1):
        for reference in page.get("/Annots", ArrayObject()):
            annotation = reference.get_object()
            if annotation.get("/Subtype") != "/Link":
                continue
            action = annotation.get("/A", {})
            if "/URI" in action:
                uri = str(action["/URI"])
                if not uri.startswith(("http://", "https://", "mailto:")):
                    dead.append(f"page {number}: a link leads to {uri}")
                continue
            target = annotation.get("/Dest", action.get("/D"))
            if isinstance(target, ArrayObject):
                first = target[0]
                alive = isinstance(first, IndirectObject) and first.idnum in objects
            else:
                alive = str(target).removeprefix("/") in names
            if not alive:
                dead.append(f"page {number}: a link leads to {target}, which is not in the file")
    return dead


def links(reader: PdfReader) -> int:
    """How many links the file has."""
    return sum(
        reference.get_object().get("/Subtype") == "/Link"
        for page in reader.pages
        for reference in page.get("/Annots", ArrayObject())
    )


def problems(path: Path, titles: dict[str, str]) -> list[str]:
    """What is wrong with a printed book, one line each.

    Args:
        path: the PDF.
        titles: for each chapter its anchor and its title.
    """
    reader = PdfReader(path)
    marks = list(entries(reader.outline))
    named = {plain(str(mark.title)) for _, mark in marks}
    found = [f"no bookmark for {title!r}" for title in titles.values() if plain(title) not in named]
    if len(marks) < 3 * len(titles):
        found.append(f"{len(marks)} bookmarks for {len(titles)} chapters: sections have none")
    places = pages_of_anchors(path)
    texts = [page.extract_text() for page in reader.pages]
    for identity, title in titles.items():
        if identity not in places:
            found.append(f"{title!r} stands on no page")
        elif plain(title)[:20] not in plain(texts[places[identity] - 1]):
            found.append(f"page {places[identity]} should start {title!r} and does not show it")
    found += [
        f"page {number}: ?? in the text"
        for number, text in enumerate(texts, 1)
        if re.search(r"\?\?(?!\?)", text)
    ]
    found += [f"page {number} is empty" for number, text in enumerate(texts, 1) if not text.strip()]
    letters = sum(len(text) for text in texts) / max(1, len(texts))
    if letters < FEWEST_LETTERS:
        found.append(f"{letters:.0f} letters on an average page: its text cannot be copied")
    if links(reader) < len(titles):
        found.append(f"{links(reader)} links: the contents have none")
    return found + dead_links(reader)


def pages(path: Path) -> int:
    """How many pages a file has."""
    return len(PdfReader(path).pages)


def summary(path: Path) -> str:
    """Pages, bookmarks, links and size in words."""
    reader = PdfReader(path)
    marks = sum(1 for _ in entries(reader.outline))
    size = path.stat().st_size / 1e6
    return f"{len(reader.pages)} pages, {marks} bookmarks, {links(reader)} links, {size:.1f} MB"
