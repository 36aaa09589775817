"""Bad input to result tables: manifests, names, and the parameters of a notebook."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kl_book import tables
from tests.refusals.case import folder, project_root

_NOTEBOOK = "curvatures.ipynb"
_GOOD: dict[str, Any] = {
    "title": "Curvature at the reference",
    "notebook": _NOTEBOOK,
    "grid": {"divergence": ["reverse_kl", "pearson"]},
    "columns": {"divergence": "str", "curvature": {"type": "float", "digits": 2}},
    "key": ["divergence"],
    "cost": "seconds",
    "deterministic": True,
}
_PARAMETERS = 'divergence = "reverse_kl"\nout = None'


def _cell(source: str, *tags: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "cell_type": "code",
        "metadata": {"tags": [*tags]},
        "execution_count": None,
        "outputs": [],
    }
    return {**made, "id": f"cell{len(source)}", "source": source}


def project(*, assigned: str = _PARAMETERS, tags: tuple[str, ...] = ("parameters",), **changes: Any) -> Path:
    """A project with the table ``curvatures``, below the case's folder; changes of its manifest by key.

    The notebook's first cell is ``assigned``, with ``tags``.
    """
    root = folder() / "project"
    (root / "tables" / "curvatures").mkdir(parents=True)
    (root / "_toc.yml").write_text("format: jb-book", encoding="utf-8")
    manifest = {key: value for key, value in {**_GOOD, **changes}.items() if value is not None}
    # JSON is YAML
    (root / "tables" / "curvatures" / "manifest.yml").write_text(json.dumps(manifest), encoding="utf-8")
    cells = [_cell(assigned, *tags), _cell("from kl_book import tables")]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (root / _NOTEBOOK).write_text(json.dumps(notebook), encoding="utf-8")
    return root


def in_project(call: Callable[[], object], **changes: Any) -> object:
    """Call a function where the project is that of the case."""
    with project_root(project(**changes)):
        return call()


def run(**options: Any) -> object:
    """Run the table with these options."""
    return in_project(partial(tables.run, "curvatures", **options))


def edited(**changes: Any) -> object:
    """Run the table where the project has these changes."""
    return in_project(partial(tables.run, "curvatures"), **changes)


def spoiled() -> object:
    """Load a table whose file was written over."""
    text = "divergence,curvature\nreverse_kl,1.00\n"
    (project() / "tables" / "curvatures" / "table.csv").write_text(f"{text}pearson,two\n", encoding="utf-8")
    with project_root(folder() / "project"):
        return tables.load("curvatures")


def without_gpu() -> object:
    """Run the profile of a GPU where there is none."""
    found = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        return in_project(lambda: tables.run("curvatures", profile="gpu"), profiles={"gpu": {}})
    finally:
        torch.cuda.is_available = found


def write(rows: object) -> object:
    """Write rows, good or bad."""
    tables.write_rows(folder() / "rows.csv", rows)
    return rows
