"""Install commands of the pages: in the sources they name the sources, on the site the site's own wheel.

The directive ``{install}`` is a block of commands with ``pip install .`` or ``pip install '.[trl]'``, which
is right in a copy of the sources. On a built page the path from its folder to the wheel (`kl_wheel`) replaces
the dot. Where a server sends the page, `kl_install.js` turns the path into the wheel's address. Downloadable
notebooks begin with a cell that says what they need (`kl_downloads`).
"""

from __future__ import annotations

import html
import re
from typing import Any

import kl_downloads
import kl_wheel
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

SCRIPT = "kl_install.js"
DOT = re.compile(r"(?<=pip install )(?:'\.(\[[\w,]+\])'|\.(?=\s|$))")  # '.[trl]' or .
SOURCES = "In a copy of the sources, this is the command."  # below a command on paper, which has no address
NOTE = (
    f'<p class="kl-install-note" data-print="{SOURCES}"><span>The path starts in the folder of this page. '
    "</span>From a copy of the sources, install <code>.</code> instead.</p>"
)


class Install(SphinxDirective):
    """``{install}``: a block of commands; the first of a page has a note for copies of the sources."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the block as the sources have it, and the note."""
        text = "\n".join(self.content)
        if not DOT.search(text):
            raise self.error(f"install got {text!r}: expected `pip install .` or `pip install '.[EXTRA]'`")
        block = nodes.literal_block(text, text, language="bash", classes=["kl-install"])
        self.set_source_info(block)
        first = not self.env.metadata[self.env.docname].get("kl_install")
        self.env.metadata[self.env.docname]["kl_install"] = True
        return [block, nodes.raw("", NOTE, format="html")] if first else [block]


def path_from(page: str, wheel: str) -> str:
    """Return the path from the folder of a page to the wheel."""
    return f"{'../' * page.count('/')}{kl_wheel.FOLDER}/{wheel}"


def name_wheel(app: Any, doctree: nodes.document, docname: str) -> None:
    """Replace the dot of each command by the path to the wheel."""
    if app.builder.format != "html":
        return
    path = path_from(docname, app.env.kl_wheel)
    for block in doctree.findall(
        lambda node: "kl-install" in getattr(node, "attributes", {}).get("classes", [])
    ):
        text = DOT.sub(lambda found: f"'{path}{found[1]}'" if found[1] else path, block.astext())
        block.children = [nodes.Text(text)]
        block.rawsource = text  # Sphinx colors a block whose text is its source


def mark_wheels(body: str, path: str) -> str:
    """Wrap each path to the wheel in a page, for the script and for paper.

    Args:
        body: The HTML of the page.
        path: The path, as `path_from` makes it.
    """

    def marked(found: re.Match[str]) -> str:
        extras = found[1] or ""
        dot = html.escape(f"'.{extras}'") if extras else "."
        data = f'data-path="{path}" data-extras="{extras}" data-print="{dot}"'
        return f'<span class="kl-wheel" {data}>{found[0]}</span>'

    quote = "(?:'|&#39;|&#x27;)"
    return re.sub(rf"{quote}{re.escape(path)}(\[[\w,]+\]){quote}|{re.escape(path)}", marked, body)


def add_script(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Mark the paths of a page that shows an install command, and load the script there."""
    if not app.env.metadata.get(pagename, {}).get("kl_install"):
        return
    app.add_js_file(SCRIPT, priority=620, loading_method="defer")
    context["body"] = mark_wheels(context["body"], path_from(pagename, app.env.kl_wheel))


def outdated(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Name the pages to write again because the wheel has another name."""
    return [page for page, data in env.metadata.items() if "kl_install" in data] * env.kl_wheel_changed


def setup(app: Any) -> dict[str, Any]:
    """Register the directive, and connect the rest to Sphinx's events."""
    app.add_directive("install", Install)
    app.connect("builder-inited", kl_wheel.lay_wheel)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-resolved", name_wheel)
    app.connect("html-page-context", add_script, priority=450)
    app.connect("build-finished", kl_downloads.finish)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
