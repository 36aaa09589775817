"""Chapters as code: their cells, the tables they load, and a run in which a table tells lies.

Run as a program, `chapters.py <notebook> <table>` executes what a notebook asserts about one table with the
numbers of that table permuted. It exits with 3 when an assert noticed, 0 when nothing did, 1 on another
error, and 4 when an assert fails with the honest table: then a statement is missing that the others need.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from kl_book.paste.statements import Statement
from tests.support.layout import PATH

ROOT = Path(__file__).resolve().parents[2]


def code_cells(path: Path) -> list[str]:
    """The code cells of a notebook, without IPython's own lines."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [re.sub(r"^[ \t]*[%!].*$", "", source, flags=re.M) for source in sources]


def tables_loaded(path: Path) -> set[str]:
    """The tables that a notebook loads."""
    return loaded_in(ast.parse("\n\n".join(code_cells(path))))


def loaded_in(tree: ast.AST) -> set[str]:
    """Names in `load("<name>")`, as a call or as an attribute."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "load":
            arguments = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
            found |= {a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return found


def run_with_shuffled_tables(python: list[str], path: Path, table: str) -> subprocess.CompletedProcess[str]:
    """Execute a chapter with one table's numbers permuted, in a process of its own (`python` starts it)."""
    environment = {**os.environ, "PYTHONPATH": PATH, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*python, str(Path(__file__).resolve()), str(path), table],
        cwd=path.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def shuffle(frame: Any) -> Any:
    """Every numeric column moved down by its own number of rows, so that rows no longer belong together."""
    import numpy

    frame = frame.copy()
    numeric = [name for name in frame.columns if frame[name].dtype.kind in "fiub"]
    for step, name in enumerate(numeric, start=1):
        shift = 1 + (step - 1) % max(1, len(frame) - 1)
        frame[name] = numpy.roll(frame[name].to_numpy(), shift)
    if not numeric:  # a table of words
        name = frame.columns[-1]
        frame[name] = numpy.roll(frame[name].to_numpy(), 1)
    return frame


def about(cells: list[str], table: str) -> list[ast.stmt]:
    """The asserts that depend on a table, and every statement that they need, in their order."""
    statements = [Statement(node) for cell in cells for node in ast.parse(cell).body]
    touched: set[str] = set()
    chosen: list[Statement] = []
    for s in statements:
        if table in loaded_in(s.node) or s.reads & touched:
            touched |= s.binds | s.changes
            chosen += [s] * s.asserts
        else:
            touched -= s.binds
    needed: set[str] = set()
    while new := set().union(*(s.reads for s in chosen)) - needed:
        needed |= new
        chosen = [s for s in statements if s in chosen or (s.binds | s.changes) & needed]
    return [s.node for s in chosen]


def main(path: str, table: str) -> int:
    """Fork where the table is loaded: one process goes on with it, the other with a shuffled one."""
    import importlib

    from kl_companion import plotting

    store = importlib.import_module("kl_book.tables.store")
    honest = store.load
    child: list[int] = []  # empty before the table is loaded; then the other process, or 0 in that process

    def load(name: str, *args: Any, **options: Any) -> Any:
        frame = honest(name, *args, **options)
        if name == table and not child:
            child.append(os.fork())
        return shuffle(frame) if name == table and child == [0] else frame

    store.load = load
    importlib.import_module("kl_book.tables").load = load
    plotting.figure = lambda *args, **options: None
    namespace: dict[str, Any] = {"__name__": "__main__", "display": lambda *args: None}
    failed = None
    try:
        for statement in about(code_cells(Path(path)), table):
            exec(compile(ast.Module([statement], []), path, "exec"), namespace)
    except AssertionError as error:
        failed = f"{error} in {ast.unparse(statement)[:300]}"
    if child == [0]:
        print(f"noticed: {failed}" if failed else "not noticed", flush=True)
        os._exit(3 if failed else 0)
    if failed or not child:
        print(f"with the honest table: {failed or 'it is not loaded'}")
        return 4
    return os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1])


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
