"""The explorer's scripts on its page alone, and BokehJS beside them: copied from its wheel, no network."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from sphinx.util import logging

PAGE = "book/explorer"
BOKEH = "bokeh/server/static/js/bokeh.min.js"
SCRIPTS = (
    "arms",
    "objectives",
    "flow",
    "gauss",
    "explore",
    "plots",
    "field",
    "walk",
    "view",
)  # in the order they build on another
logger = logging.getLogger(__name__)


def bokeh_source() -> Path | None:
    """BokehJS in the installed wheel, if there is one."""
    try:
        path = Path(str(metadata.distribution("bokeh").locate_file(BOKEH)))
    except metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


def copy_bokeh(app: Any) -> None:
    """Copy the one file of BokehJS that the figures need, about 1.3 MB."""
    source = bokeh_source()
    if app.builder.format != "html":
        return
    if source is None:
        logger.warning("bokeh is not installed: the explorer would show no figures")
        return
    target = Path(app.outdir) / "_static" / "bokeh"
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target / source.name)


def add_files(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Scripts and style sheet on the explorer's page alone."""
    if pagename == PAGE:
        app.add_css_file("simplex.css")
        app.add_css_file("moving.css")
        app.add_css_file("explorer/explorer.css")
        app.add_js_file("bokeh/bokeh.min.js", priority=600, loading_method="defer")
        app.add_js_file("simplex.js", priority=605, loading_method="defer")
        for name in SCRIPTS:
            app.add_js_file(f"explorer/{name}.js", priority=610, loading_method="defer")


def connect(app: Any) -> None:
    """Connect to Sphinx's events."""
    app.connect("builder-inited", copy_bokeh)
    app.connect("html-page-context", add_files, priority=450)
