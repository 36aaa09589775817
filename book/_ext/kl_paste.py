"""Paste your loss: the editor in its pages, Python beside them, and links from code in chapters.

The directive ``{paste-your-loss}`` writes the form; its scripts and style sheets are on those pages alone.
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
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from kl_book.paste.bundle import sources, write_bundle
from kl_companion.auditing.judgment.words import divergence_words
from kl_companion.divergences import DIVERGENCES

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE / "kl_paste.yml"
PAGE = "book/paste"
FOLDER = "_python"
PATIENCE = 20  # seconds without a sign of progress, after which a loss is stopped
STYLES = ("simplex.css", "paste/paste.css")
SCRIPTS = ("simplex.js", "paste/editor.js", "paste/verdict.js", "paste/paste.js")
logger = logging.getLogger(__name__)


def examples() -> list[dict[str, str]]:
    """The losses of the menu: ``title``, ``code``, and other fields of the form."""
    found: list[dict[str, str]] = yaml.safe_load(EXAMPLES.read_text(encoding="utf-8"))
    return found


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


class PasteYourLoss(SphinxDirective):
    """``{paste-your-loss}``: the editor, its menu of examples, and the place of the verdict."""

    def run(self) -> list[nodes.Node]:
        """The form as raw HTML, which says without scripts what it would need."""
        self.env.note_dependency(str(EXAMPLES))
        self.env.metadata.setdefault(self.env.docname, {})["kl_paste"] = True
        return [nodes.raw("", form(self.env.docname), format="html")]


def form(page: str) -> str:
    """The form of one page; what is only known when pages are written stands in it as ``@...@``."""
    root = "../" * page.count("/")
    menu = "".join(
        f'<option value="{i}">{html.escape(entry["title"])}</option>' for i, entry in enumerate(examples())
    )
    wants = "".join(f'<option value="{n}">{html.escape(divergence_words(n))}</option>' for n in DIVERGENCES)
    data = json.dumps(examples()).replace("<", "\\u003c")
    there = "" if page == PAGE else f"{root}{PAGE}.html"
    return f"""<div class="kl-paste" data-bytes="@bytes@" data-archive="@archive@"
 data-python="{root}{FOLDER}/" data-worker="{root}_static/paste/worker.js" data-page="{there}"
 data-patience="{PATIENCE}">
<form hidden autocomplete="off">
<div class="kl-asked">
<label>Example <select name="example"><option value="">(your own)</option>{menu}</select></label>
<label>It should minimize <select name="want"><option value="">(nothing said)</option>{wants}</select></label>
</div>
<label class="kl-code" for="kl-code">Your loss: a function, or lines that end in <code>loss = ...</code>
</label>
<div class="kl-editor"><pre class="highlight" aria-hidden="true"><code></code></pre>
<textarea id="kl-code" name="code" spellcheck="false" autocapitalize="off" autocorrect="off"
 wrap="off"></textarea>
</div>
<div class="kl-run">
<button type="submit">What does it minimize?</button>
<button type="button" data-stop hidden>Stop</button>
<button type="button" data-link>Copy a link</button> <output></output>
<details><summary>Names and options</summary><div class="kl-asked">
<label>Names that it does not know
<input name="map" placeholder="x_logps=ref_logp" spellcheck="false"></label>
<label>Options <input name="set" placeholder="beta=0.1, kl_type=k2" spellcheck="false"></label>
<label>Function, of several <input name="name" placeholder="Trainer.kl_penalty" spellcheck="false"></label>
</div></details>
</div>
</form>
<noscript><p>The editor needs JavaScript. On your machine: <code>kl-companion audit -</code>.</p></noscript>
<p class="kl-state" role="status"></p>
<progress max="1" hidden aria-label="Loading and enumerating"></progress>
<div id="verdict" class="kl-verdict-of-loss" aria-live="polite" hidden></div>
<script type="application/json">{data}</script>
</div>"""


def add_files(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Scripts and style sheets on the pages that have the form, and the sizes in it."""
    if not app.env.metadata.get(pagename, {}).get("kl_paste"):
        return
    for name in STYLES:
        app.add_css_file(name)
    for name in SCRIPTS:
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
    app.add_directive("paste-your-loss", PasteYourLoss)
    app.connect("builder-inited", copy_python)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-read", add_links)
    app.connect("html-page-context", add_files, priority=450)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
