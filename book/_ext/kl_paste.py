"""Paste your loss, or your log: forms in their pages, Python beside them, and links from code in chapters.

The directives ``{paste-your-loss}`` and ``{paste-your-log}`` write the forms (`kl_paste.html`); their scripts
and style sheets are on those pages alone.
A code cell with the tag ``try``, and a code block of the class ``try``, gets a link that opens the editor
with that code. Pyodide (`kl_npm`) and the package's own sources (`kl_book.paste.bundle`) are
copied to ``_python`` in the built pages.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import json
import shutil
from pathlib import Path
from typing import Any

import kl_npm
import yaml
from docutils import nodes
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from kl_book.paste.bundle import sources, write_bundle
from kl_companion.auditing.judgment.words import divergence_words
from kl_companion.divergences import DIVERGENCES
from kl_companion.monitor.logs.keys import METRICS

HERE = Path(__file__).resolve().parent
LOSS, LOG, CELL = "paste-your-loss", "paste-your-log", "cell"  # the last is kl_here's
TEMPLATE = HERE / "kl_paste.html"
EXAMPLES = {LOSS: HERE / "kl_paste.yml", LOG: HERE / "kl_paste_logs.yml"}
COMMANDS = {LOSS: "kl-companion audit -", LOG: "kl-companion report LOG"}
PATIENCE = {LOSS: 30, LOG: 300}  # seconds without a sign of progress, after which Python is stopped
PAGE = "book/paste"
FOLDER = "_python"
STYLES = ("simplex.css", "paste/paste.css")
SCRIPTS = {
    LOSS: ("simplex.js", "paste/python.js", "paste/editor.js", "paste/verdict.js", "paste/paste.js"),
    LOG: ("paste/python.js", "paste/verdict.js", "paste/log.js"),
    CELL: ("paste/python.js", "paste/editor.js", "paste/verdict.js", "paste/here.js"),
}
logger = logging.getLogger(__name__)


def examples(kind: str = LOSS) -> list[dict[str, str]]:
    """Return the examples of a form's menu: ``title``, ``code`` or ``log``, and other fields of the form."""
    entries: list[dict[str, str]] = yaml.safe_load(EXAMPLES[kind].read_text(encoding="utf-8"))
    return entries


def bundle(cache: Path) -> Path:
    """The archive of the package, made again only when a source changed."""
    digest = hashlib.sha256()
    for path in [*sources(), *sorted(HERE.parents[1].glob("kl_companion/divergences/*.py"))]:
        digest.update(path.read_bytes())
    target = cache / f"package-{digest.hexdigest()[:16]}.zip"
    if not target.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob("package-*"):
            old.unlink()
        write_bundle(target)
    return target


def copy_python(app: Any) -> None:
    """Copy Pyodide and the package into the built pages; without Pyodide say so, and build the rest."""
    before = getattr(app.env, "kl_python", None)
    app.env.kl_python = python_files(app)
    app.env.kl_python_changed = before != app.env.kl_python


def python_files(app: Any) -> tuple[int, str]:
    """Put the files into the built pages: how many bytes a reader loads, and the archive's name."""
    if app.builder.format != "html":
        return 0, ""
    folder = Path(app.outdir) / FOLDER
    if not kl_npm.PYODIDE.present():
        logger.info("Python for the browser was not fetched: the page that audits a pasted loss says so")
        shutil.rmtree(folder, ignore_errors=True)
        return 0, ""
    archive = bundle(Path(app.outdir).parent / "package")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("package-*"):
        old.unlink()
    wanted = [*kl_npm.PYODIDE.kept(), archive]
    for path in wanted:
        shutil.copy2(path, folder / path.name)
    return sum(path.stat().st_size for path in wanted), archive.name


def outdated(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Pages with the form are written again when the archive that they name is another one."""
    return [page for page, data in env.metadata.items() if "kl_paste" in data] * env.kl_python_changed


class PasteForm(SphinxDirective):
    """``{paste-your-loss}`` or ``{paste-your-log}``: the form, its examples, and the place of the answer."""

    def run(self) -> list[nodes.Node]:
        """Return the form as raw HTML, which says without scripts what it would need."""
        for path in (EXAMPLES[self.name], TEMPLATE):
            self.env.note_dependency(str(path))
        self.env.metadata.setdefault(self.env.docname, {})["kl_paste"] = self.name
        return [nodes.raw("", form(self.name, self.env.docname), format="html")]


def filled(template: Path, **values: Any) -> str:
    """Return the text of a template with its values; one that is missing is an error."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)


def form(kind: str, page: str) -> str:
    """Return the form of one page; ``@...@`` stands for what is only known when pages are written."""
    root = "../" * page.count("/")
    return filled(
        TEMPLATE,
        kind=kind,
        root=root,
        there="" if page == PAGE else f"{root}{PAGE}.html",
        examples=examples(kind),
        wants=[(name, divergence_words(name)) for name in DIVERGENCES],
        frameworks=sorted({metric.framework for metric in METRICS}),
        patience=PATIENCE[kind],
        command=COMMANDS[kind],
        data=Markup(json.dumps(examples(kind)).replace("<", "\\u003c")),
    )


def add_files(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Scripts and style sheets on the pages that have a form, and the sizes in it."""
    kind = app.env.metadata.get(pagename, {}).get("kl_paste")
    if not kind:
        return
    for name in STYLES:
        app.add_css_file(name)
    for name in SCRIPTS[kind]:
        app.add_js_file(name, priority=620, loading_method="defer")
    size, archive = app.env.kl_python
    body = context.get("body", "")
    for name, value in (("bytes", size), ("archive", archive), ("megabytes", round(size / 1e6))):
        for sign in ("@", "&#64;"):  # the second is what Sphinx makes of the first in text
            body = body.replace(f"{sign}{name}{sign}", str(value))
    context["body"] = body


def link_to(code: str, page: str) -> str:
    """The address of the editor with some code in it, from another page."""
    text = base64.urlsafe_b64encode(code.strip("\n").encode() + b"\n").decode().rstrip("=")
    return f"{'../' * page.count('/')}{PAGE}.html#code={text}&run=1"


def pastable(code: str) -> str:
    """The code itself; of a cell that begins with a text which is a program, that text."""
    first = ast.parse(code).body[0] if code.strip() else None
    if isinstance(first, ast.Assign) and isinstance(first.value, ast.Constant):
        text = first.value.value
        if isinstance(text, str) and "def " in text:
            return text
    return code


def add_links(app: Any, doctree: nodes.document) -> None:
    """A link under each piece of code that is marked with ``try``."""
    page = app.env.docname
    for block in list(doctree.findall(nodes.literal_block)):
        cell = block.parent.parent if isinstance(block.parent, nodes.container) else None
        marked = "try" in block["classes"] or (cell is not None and "tag_try" in cell.get("classes", []))
        is_source = cell is None or "cell_input" in block.parent.get("classes", [])
        if not (marked and is_source):
            continue
        address = html.escape(link_to(pastable(block.astext()), page))
        link = nodes.raw(
            "", f'<p class="kl-try"><a href="{address}">Try it: what does this minimize?</a></p>'
        )
        link["format"] = "html"
        around = block if cell is None or "tag_try" not in cell.get("classes", []) else cell
        around.parent.insert(around.parent.index(around) + 1, link)


def setup(app: Any) -> dict[str, Any]:
    """Register the directive, and connect the rest to Sphinx's events."""
    for kind in EXAMPLES:
        app.add_directive(kind, PasteForm)
    app.connect("builder-inited", copy_python)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-read", add_links)
    app.connect("html-page-context", add_files, priority=450)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
