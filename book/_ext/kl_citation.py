"""How to cite the book, from CITATION.cff: `{kl-citation}` writes a line of text and a BibTeX entry.

The list of references has labels like the citations in the text: the style `author_year`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from pybtex.plugin import register_plugin
from pybtex.richtext import Text
from pybtex.style.formatting.plain import Style as Plain
from pybtex.style.labels import BaseLabelStyle
from sphinx.util.docutils import SphinxDirective

CFF = Path(__file__).resolve().parents[2] / "CITATION.cff"
WANTED = ("title", "authors", "version", "date-released")


def cited(path: Path = CFF) -> dict[str, Any]:
    """What a CITATION.cff says.

    Raises:
        ValueError: a field that a citation needs is missing.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    missing = [name for name in WANTED if not (isinstance(content, dict) and content.get(name))]
    if missing:
        raise ValueError(f"{path.name} has no {', '.join(missing)}: wanted {', '.join(WANTED)}")
    return content


def authors(content: dict[str, Any]) -> list[str]:
    """Names, a person's as "family, given"; a group's as it stands, in braces that keep it whole."""
    return [
        f"{{{a['name']}}}" if "name" in a else f"{a['family-names']}, {a['given-names']}"
        for a in content["authors"]
    ]


def bibtex(content: dict[str, Any]) -> str:
    """The entry for a bibliography."""
    year = str(content["date-released"])[:4]
    fields = {
        "title": f"{{{content['title']}}}",
        "author": " and ".join(authors(content)),
        "year": year,
        "version": str(content["version"]),
    }
    for name, field in (("url", "url"), ("doi", "doi"), ("repository-code", "url")):
        if content.get(name):
            fields.setdefault(field, str(content[name]))
    width = max(map(len, fields))
    lines = "".join(f"  {name:<{width}} = {{{text}}},\n" for name, text in fields.items())
    return f"@software{{klbook{year},\n{lines}}}"


def sentence(content: dict[str, Any]) -> str:
    """The citation as a line of text."""
    who = ", ".join(name.strip("{}") for name in authors(content))
    year = str(content["date-released"])[:4]
    end = "" if content["title"].endswith((".", "?", "!")) else "."
    return f"{who} ({year}). {content['title']}{end} Version {content['version']}."


class Citation(SphinxDirective):
    """`{kl-citation}`: the line of text, then BibTeX, both with a copy button."""

    def run(self) -> list[nodes.Node]:
        """The two boxes."""
        self.env.note_dependency(str(CFF))
        content = cited()
        line = nodes.literal_block(sentence(content), sentence(content), language="none", classes=["kl-cite"])
        entry = nodes.literal_block(bibtex(content), bibtex(content), language="bibtex", classes=["kl-cite"])
        return [nodes.paragraph(text="As text:"), line, nodes.paragraph(text="As BibTeX:"), entry]


class AuthorYearLabels(BaseLabelStyle):
    """Labels such as "Tang and Munos, 2025"; letters tell apart what would be alike."""

    def format_labels(self, sorted_entries: Iterable[Any]) -> Iterator[str]:
        """The label of each entry."""
        labels = [label(entry) for entry in sorted_entries]
        of_all, so_far = Counter(labels), Counter[str]()
        for text in labels:
            so_far[text] += 1
            yield text + (chr(ord("a") - 1 + so_far[text]) if of_all[text] > 1 else "")


class AuthorYear(Plain):
    """The style of the list of references."""

    default_label_style = "author_year"


def label(entry: Any) -> str:
    """Family names and year of an entry of the bibliography."""
    names = [
        str(Text.from_latex(" ".join([*p.prelast_names, *p.last_names]))) for p in entry.persons["author"]
    ]
    who = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"{who}, {entry.fields['year']}"


def connect(app: Any) -> None:
    """Make the directive known, and the style of the list of references."""
    register_plugin("pybtex.style.labels", "author_year", AuthorYearLabels)
    register_plugin("pybtex.style.formatting", "author_year", AuthorYear)
    app.add_directive("kl-citation", Citation)
