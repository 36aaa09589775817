"""The built pages as files: links, anchors, and what they would load."""

from __future__ import annotations

import re
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
LOADING_LINKS = {"stylesheet", "preload", "icon", "shortcut", "modulepreload", "manifest"}
# Three tags of four are words of code, with a class and nothing that is looked for here: the parser is slow.
COLORED = re.compile('<span class="[^"<>]*">|</span>')


class Page(HTMLParser):
    """Anchors, links and loaded addresses of one page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.named: dict[str, str] = {}  # text of a link, where it leads
        self._open: str | None = None
        self._text = ""
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
            self._open, self._text = values["href"], ""
        if tag in LOADS and values.get(LOADS[tag]):
            self.loads.append(values[LOADS[tag]])
        if tag == "link" and set(values.get("rel", "").split()) & LOADING_LINKS:
            self.loads.append(values.get("href", ""))

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._open is not None:
            self.named.setdefault(" ".join(self._text.split()), self._open)
            self._open = None


@lru_cache(maxsize=512)
def parse(path: Path) -> Page:
    return Page(COLORED.sub("", path.read_text(encoding="utf-8")))


def broken_links(site: Path) -> list[str]:
    """Every internal link or loaded file that leads nowhere, and every anchor that its page does not have."""
    problems = []
    for path in sorted(site.rglob("*.html")):
        if "_static" in path.relative_to(site).parts:
            continue
        page = parse(path)
        for address in dict.fromkeys(page.links + page.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                problems.append(f"{path.relative_to(site)}: {address} does not exist")
                continue
            # a fragment with an equals sign is what a form holds, not a place on the page
            anchored = parts.fragment and "=" not in parts.fragment and target.suffix == ".html"
            if anchored and unquote(parts.fragment) not in parse(target).anchors:
                problems.append(f"{path.relative_to(site)}: {address} has no such anchor")
    return problems


def outside_loads(site: Path) -> list[str]:
    """Scripts, style sheets and images that a page would fetch from elsewhere."""
    return [
        f"{path.relative_to(site)}: {address}"
        for path in sorted(site.rglob("*.html"))
        for address in parse(path).loads
        if urlsplit(address).scheme in ("http", "https") or urlsplit(address).netloc
    ]
