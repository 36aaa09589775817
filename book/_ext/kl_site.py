"""What this book needs beyond the extensions that it uses.

1. Chapters are executed again when, and only when, what they use changed: kl_cache.py.
2. MathJax is served from the built pages, so that they read without a network.
3. A quiet console: sphinx-thebe, which Jupyter Book always loads, is taken out.
4. Buttons to a repository when one is named, pages of the API (kl_api.py) without filler.
5. Less to load (kl_figures.py, kl_light.py), nothing in the way of a screen reader (kl_accessible.py), lines
   that break well (kl_lines.py).
6. Numbered figures, and tables with one row of headings: kl_numbers.py.
"""

from __future__ import annotations

import os
import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import kl_accessible
import kl_api
import kl_cache
import kl_citation
import kl_experiments
import kl_explorer
import kl_figures
import kl_light
import kl_numbers
import kl_typeface
from sphinx.util import logging

MATHJAX = ("tex-mml-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")
logger = logging.getLogger(__name__)


def mathjax_source() -> Path | None:
    """The folder of MathJax that the wheel sphinx-mathjax-offline carries, if it is installed."""
    try:
        wheel = metadata.distribution("sphinx-mathjax-offline")
    except metadata.PackageNotFoundError:
        return None
    folder = Path(str(wheel.locate_file("sphinx-mathjax-offline/static/mathjax")))
    return folder if folder.is_dir() else None


def use_local_mathjax(app: Any, config: Any) -> None:
    """Point the pages to the copy of MathJax beside them."""
    if mathjax_source() is None:
        logger.warning("sphinx-mathjax-offline is not installed: formulas would need a network")
        return
    config.mathjax_path = "mathjax/tex-mml-chtml.js"


def copy_mathjax(app: Any) -> None:
    """Copy the three parts of MathJax that these pages load, about 2 MB of its 24."""
    source = mathjax_source()
    if source is None or app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "mathjax"
    target.mkdir(parents=True, exist_ok=True)
    for name in MATHJAX:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            shutil.copy2(source / name, target / name)


def renew_static(app: Any) -> None:
    """Copy the book's own style sheets and scripts, which Sphinx leaves as they were when no page changed."""
    if app.builder.format == "html":
        source = Path(app.srcdir) / "book" / "_static"
        shutil.copytree(source, Path(app.outdir) / "_static", dirs_exist_ok=True)


def drop_thebe(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Remove sphinx-thebe's files: its constants, written twice, are a SyntaxError on every page."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for script in context.get("script_files", []):
        body = getattr(script, "attributes", {}).get("body") or ""
        name = str(getattr(script, "filename", script) or "")
        if "thebe" in name or "THEBE_JS_URL" in body or (name, body) in seen:
            continue
        seen.add((name, body))
        kept.append(script)
    context["script_files"] = kept
    context["css_files"] = [
        css for css in context.get("css_files", []) if "thebe" not in str(getattr(css, "filename", css))
    ]


def add_repository(app: Any, config: Any) -> None:
    """Repository, issue, Colab and Binder buttons for the address in the variable REPOSITORY, if any."""
    address = os.environ.get("REPOSITORY", "").strip().rstrip("/")
    if not address:
        return
    if not address.startswith("https://"):
        logger.warning("REPOSITORY is %r: wanted an address such as https://host/owner/name", address)
        return
    options = {
        "repository_url": address,
        "repository_branch": "main",
        "path_to_docs": "",
        "use_repository_button": True,
        "use_issues_button": True,
    }
    if address.startswith("https://github.com/"):  # of this host both open notebooks
        options["launch_buttons"] = {
            "colab_url": "https://colab.research.google.com",
            "binderhub_url": "https://mybinder.org",
            "notebook_interface": "jupyterlab",
        }
    config.html_theme_options = {**config.html_theme_options, **options}


def skip_fields(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out "Alias for field number 0": the class's own docstring says what its fields are."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def docstring_to_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Read docstrings as they are written: `code` in single backticks, |x| as an absolute value.

    A property's first line is text; napoleon would take what stands before a colon for its type.
    """
    for number, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "..", "|")):
            continue
        pieces = re.split(r"(``.*?``|:[\w:]+:`[^`]+`|`[^`]+`_*)", line)
        for at, piece in enumerate(pieces):
            if at % 2 == 0:
                pieces[at] = re.sub(r"(?<!\\)\|", r"\\|", piece)
            elif re.fullmatch(r"`[^`<>]+`", piece):
                pieces[at] = f"`{piece}`"
        lines[number] = "".join(pieces)
    if what in ("attribute", "property", "data") and lines and lines[0].strip():
        lines[0] = f": {lines[0]}"


def setup(app: Any) -> dict[str, Any]:
    """Connect everything to Sphinx's events."""
    kl_api.connect(app)
    kl_cache.connect(app)
    kl_experiments.connect(app)
    kl_explorer.connect(app)
    kl_numbers.connect(app)
    app.connect("config-inited", use_local_mathjax)
    app.connect("config-inited", add_repository)
    app.connect("builder-inited", copy_mathjax)
    app.connect("builder-inited", renew_static)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", docstring_to_rst, priority=400)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.add_directive("from-package", kl_figures.FromPackage)
    app.connect("html-page-context", kl_figures.add_files, priority=450)
    app.connect("html-page-context", kl_figures.in_page)
    app.connect("build-finished", kl_light.trim)
    app.connect("build-finished", kl_typeface.on_finished)
    app.connect("build-finished", kl_accessible.finish)
    kl_citation.connect(app)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
