"""The page "Experiments": ``{experiments}`` lists every result table, what it measures and who uses it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kl_cache
import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]


def title_of(notebook: Path) -> str:
    """The heading of a notebook, without the word that all experiments begin with."""
    text = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
    heading = re.search(r"^# (?:Experiment: )?(.+)$", text, re.M)
    assert heading is not None
    return heading[1][0].upper() + heading[1][1:]


def listed(root: Path, pages: list[str]) -> str:
    """The table in Markdown.

    Args:
        root: Of the project.
        pages: All pages of the book.
    """
    manifests = {path.parent.name: path for path in sorted((root / "tables").glob("*/manifest.yml"))}
    others = ("book/experiments/", "book/how_to_add")  # the latter asks for any table, by its name
    notebooks = [root / f"{page}.ipynb" for page in pages if not page.startswith(others)]
    code = kl_cache.closure().notebook_code
    used = {
        p: kl_cache.tables_used(code(p.read_text(encoding="utf-8")), manifests)
        for p in notebooks
        if p.is_file()
    }
    lines = ["| experiment | table | what it measures | where it is used |", "| :--- | :--- | :--- | :--- |"]
    for name, path in manifests.items():
        manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
        note = " (with a real model)" if "like" in manifest else ""
        if "like" in manifest:  # the same experiment with another model
            manifest = yaml.safe_load(manifests[manifest["like"]].read_text(encoding="utf-8")) | manifest
        notebook = root / manifest["notebook"]
        chapters = [f"[](/{p.relative_to(root).as_posix()})" for p, tables in used.items() if name in tables]
        link = f"[{title_of(notebook)}{note}](/{notebook.relative_to(root).as_posix()})"
        table = f"{{download}}`{name} </tables/{name}/table.csv>`"
        what = manifest["title"].replace("|", "&#124;")
        lines.append(f"| {link} | {table} | {what} | {', '.join(chapters) or 'only on its own page'} |")
    return "\n".join(lines)


class Experiments(SphinxDirective):
    """``{experiments}``: the table, written again when a manifest or a chapter changed."""

    def run(self) -> list[nodes.Node]:
        """The table as part of the page."""
        pages = sorted(self.env.found_docs)
        for path in [*(ROOT / "tables").glob("*/manifest.yml"), *(ROOT / "book").rglob("*.ipynb")]:
            self.env.note_dependency(str(path))
        into = nodes.container(classes=["kl-experiments"])
        self.state.nested_parse(StringList(listed(ROOT, pages).splitlines(), self.env.docname), 0, into)
        return [into]


def connect(app: Any) -> None:
    """Add the directive."""
    app.add_directive("experiments", Experiments)
