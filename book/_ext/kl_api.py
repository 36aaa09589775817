"""The API's pages: ``{names}`` documents names of a room, ``{one-line}`` lists names with a line each.

The argument is the package or module from which a reader imports the names, the content is the names.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

FEW, LONG = 8, 200  # keys of a registry that a line names; characters of a value that are not printed

BACK = re.compile(r'(?<=id=")(([\w.]+)">\s*<a class="viewcode-back" href="[^"#]*#)[^"]*')


def said(value: Any) -> tuple[str, str]:
    """Return what autodoc calls an object, and its docstring; of data its value in words.

    autodoc would document a dict by the docstring of ``dict``.
    """
    if inspect.isclass(value) or inspect.isroutine(value):
        return "class" if inspect.isclass(value) else "function", inspect.getdoc(value) or ""
    if isinstance(value, Mapping):
        keys = ", ".join(f"`{key}`" for key in list(value)[:FEW])
        return "data", f"A dict of {len(value)}: {keys}{', …' if len(value) > FEW else '.'}"
    text = " ".join(str(value).split()).removeprefix("typing.")
    return "data", f"`{text}`." if len(text) < LONG else f"A {type(value).__name__} of {len(value)}."


def entries(room: str, members: dict[str, Any]) -> list[str]:
    """Return lines of Markdown that document members of a room."""
    lines = ["```{eval-rst}"]
    for name, value in members.items():
        kind, doc = said(value)
        body = {"class": ":members:", "function": "", "data": f"\n   {doc.replace('`', '``')}"}[kind]
        lines += [f".. {'py:' if kind == 'data' else 'auto'}{kind}:: {room}.{name}", f"   {body}", ""]
    return "\n".join([*lines, "```"]).splitlines()


def one_line(room: str, members: dict[str, Any]) -> list[str]:
    """Return a table in Markdown: members of a room, linked, with the first paragraph of their docstrings."""
    rows = ["| name | what it is |", "| :--- | :--- |"]
    for name, value in members.items():
        first = " ".join(said(value)[1].split("\n\n")[0].split()).replace("``", "`").replace("|", "&#124;")
        rows.append(f"| {{py:obj}}`{name} <{room}.{name}>` | {first} |")
    return rows


class Names(SphinxDirective):
    """Names of a room, documented."""

    required_arguments, has_content = 1, True
    write = staticmethod(entries)

    def run(self) -> list[nodes.Node]:
        """Return the entries as part of the page."""
        room = self.arguments[0]
        members = {name: getattr(import_module(room), name) for name in " ".join(self.content).split()}
        sources = map(inspect.getmodule, (sys.modules[room], *members.values()))
        files = {getattr(module, "__file__", None) for module in sources}
        for file in files - {None}:
            self.env.note_dependency(file)
        into = nodes.container()
        self.state.nested_parse(StringList(self.write(room, members), self.env.docname), 0, into)
        return [into]


class OneLine(Names):
    """Names of a room, a line each."""

    write = staticmethod(one_line)


def lead_back(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Link names in a listing to their entries: viewcode takes all names of a module for one room's."""
    if not pagename.startswith("_modules/"):
        return
    module, objects = f"{pagename[9:].replace('/', '.')}.", app.env.get_domain("py").objects

    def entry(link: re.Match[str]) -> str:
        name = link[2]
        own = (n for n in objects if n.endswith(f".{name}") and module.startswith(n.removesuffix(name)))
        return link[1] + next((objects[n].node_id for n in own), "")

    context["body"] = BACK.sub(entry, context["body"])


def connect(app: Any) -> None:
    """Add the directives."""
    app.connect("html-page-context", lead_back)
    app.add_directive("names", Names)
    app.add_directive("one-line", OneLine)
