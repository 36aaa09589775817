"""Figures as files beside the pages, each once.

A chapter's figure arrives as four drawings inside the page: light and dark, wide and narrow. Light and dark
differ in a few colors only, so both are one file here, in which the colors are variables: `figure.svg#dark`
shows it with those of a dark page. Numbers keep two decimals.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import inspect
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

FIGURE = re.compile(r'<figure class="kl-figure.*?</figure>', re.S)
IMAGE = re.compile(
    r'(<img class="(kl-(?:light|dark)) (kl-(?:wide|narrow))"[^>]*?src=")data:image/svg\+xml;base64,([^"]+)"'
)
COLOR = re.compile(r"#[0-9a-fA-F]{6}\b")
IDENTITY = re.compile(r'(?<= id=")([^"]+)"')


def tidy(drawing: str) -> str:
    """A drawing without its prolog, with short ids in order of appearance and numbers of two decimals."""
    text = drawing[drawing.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.S)
    names: dict[str, str] = {}
    for name in IDENTITY.findall(text):
        names.setdefault(name, f"i{len(names)}")
    text = IDENTITY.sub(lambda found: names[found[1]] + '"', text)
    text = re.sub(r'(?<=href="#)([^"]+)(?=")', lambda found: names.get(found[1], found[1]), text)
    text = re.sub(r"(?<=url\(#)([^)]+)(?=\))", lambda found: names.get(found[1], found[1]), text)

    def rounded(found: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", found[0])

    text = re.sub(r'\b(?:d|x|y|width|height|points)="[^"]*"|translate\([^)]*\)', rounded, text)
    return re.sub(r"\s*\n\s*", " ", text)


def merged(light: str, dark: str) -> str | None:
    """One drawing that has the colors of the second where its address ends in #dark.

    Returns:
        None where the two differ in more than their colors.
    """
    if COLOR.split(light) != COLOR.split(dark):
        return None
    pairs = list(zip_longest(COLOR.findall(light), COLOR.findall(dark)))
    changed = {pair: f"--c{n}" for n, pair in enumerate(dict.fromkeys(p for p in pairs if p[0] != p[1]))}
    colors = iter(pairs)

    def named(found: re.Match[str]) -> str:
        variable = changed.get(next(colors))
        return f"var({variable})" if variable else found[0]

    text = COLOR.sub(named, light)
    day = "".join(f"{name}:{pair[0]};" for pair, name in changed.items())
    night = "".join(f"{name}:{pair[1]};" for pair, name in changed.items())
    start = text.index(">", text.index("<svg")) + 1
    end = text.rindex("</svg>")
    style = f"<style>:root{{{day}}}#dark:target{{{night}}}</style>"
    return f'{text[:start]}{style}<g id="dark">{text[start:end]}</g>{text[end:]}'


def to_files(body: str, folder: Path, address: str) -> str:
    """Write the figures of a page as files, and name them in the page.

    Args:
        body: HTML with figures in `data:` addresses.
        folder: where to write.
        address: how the page reaches that folder.
    """

    def write(drawing: str) -> str:
        name = f"{hashlib.sha256(drawing.encode()).hexdigest()[:16]}.svg"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(drawing, encoding="utf-8")
        return f"{address}/{name}"

    def figure(found: re.Match[str]) -> str:
        drawings = {
            (theme, width): tidy(base64.b64decode(data).decode("utf-8"))
            for _, theme, width, data in IMAGE.findall(found[0])
        }
        sources: dict[tuple[str, str], str] = {}
        for width in ("kl-wide", "kl-narrow"):
            pair = [drawings.get((theme, width)) for theme in ("kl-light", "kl-dark")]
            one = merged(*pair) if all(pair) else None  # type: ignore[arg-type]
            for theme, drawing in zip(("kl-light", "kl-dark"), pair, strict=True):
                if one is not None:
                    sources[theme, width] = write(one) + "#dark" * (theme == "kl-dark")
                elif drawing is not None:
                    sources[theme, width] = write(drawing)
        return IMAGE.sub(lambda image: f'{image[1]}{sources[image[2], image[3]]}"', found[0])

    return FIGURE.sub(figure, body)


class FromPackage(SphinxDirective):
    """``{from-package} module:function``: a figure or a table, on a page that executes nothing."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """HTML as it is, and text as Markdown; the page is read again when the module or a table changes."""
        module, _, name = self.arguments[0].partition(":")
        function = getattr(importlib.import_module(module), name)
        tables = Path(self.env.srcdir).glob("tables/*/table.csv")
        for path in (inspect.getsourcefile(function) or "", *map(str, tables)):
            self.env.note_dependency(path)
        made = function()
        if isinstance(made, str):
            into = nodes.container()
            self.state.nested_parse(StringList(made.splitlines(), self.arguments[0]), 0, into)
            return into.children
        html = made._repr_html_() if hasattr(made, "_repr_html_") else made._repr_mimebundle_()["text/html"]
        return [nodes.raw("", html, format="html")]


def in_page(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Move the figures of a page into files."""
    if app.builder.format != "html" or "kl-figure" not in context.get("body", ""):
        return
    address = "../" * pagename.count("/") + "_images"
    context["body"] = to_files(context["body"], Path(app.outdir) / "_images", address)


def add_files(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """What plays moving figures, on pages that have one."""
    if 'class="kl-figure kl-moving"' in context.get("body", ""):
        app.add_css_file("moving.css")
        app.add_js_file("moving.js", loading_method="defer")
