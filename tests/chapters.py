"""Chapters as code: their cells, the tables they load, and a run in which a table tells lies.

Run as a program, `chapters.py <notebook> <table>` executes a notebook's code in one namespace with the
numbers of one table permuted. It exits with 3 when an assert noticed, 0 when nothing did, 1 on another error.
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

ROOT = Path(__file__).resolve().parents[1]


def code_cells(path: Path) -> list[str]:
    """The code cells of a notebook, without IPython's own lines."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [re.sub(r"^[ \t]*[%!].*$", "", source, flags=re.M) for source in sources]


def tables_loaded(path: Path) -> set[str]:
    """Names in `load("<name>")`, as a call or as an attribute."""
    found = set()
    for node in ast.walk(ast.parse("\n\n".join(code_cells(path)))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "load":
            arguments = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
            found |= {a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return found


def run_with_shuffled_tables(python: list[str], path: Path, table: str) -> subprocess.CompletedProcess[str]:
    """Execute a chapter with one table's numbers permuted, in a process of its own (`python` starts it)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
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


def main(path: str, table: str) -> int:
    import importlib

    from kl_companion import plotting

    store = importlib.import_module("kl_companion.tables.store")
    honest = store.load
    lied = []

    def load(name: str, *args: Any, **options: Any) -> Any:
        frame = honest(name, *args, **options)
        if name == table:
            lied.append(name)
            return shuffle(frame)
        return frame

    store.load = load
    importlib.import_module("kl_companion.tables").load = load
    plotting.figure = lambda *args, **options: None
    namespace: dict[str, Any] = {"__name__": "__main__", "display": lambda *args: None}
    try:
        for cell in code_cells(Path(path)):
            exec(compile(cell, path, "exec"), namespace)
    except AssertionError as error:
        print(f"noticed: {error}")
        return 3 if lied else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
