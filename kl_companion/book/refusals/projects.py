"""Bad input to result tables: manifests, names, and the parameters of a notebook."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kl_companion.book import tables
from kl_companion.book.refusals.case import Case, folder, project_root

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
    cells = [_cell(assigned, *tags), _cell("from kl_companion.book import tables")]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (root / _NOTEBOOK).write_text(json.dumps(notebook), encoding="utf-8")
    return root


def in_project(call: Callable[[], object], **changes: Any) -> object:
    """Call a function where the project is that of the case."""
    with project_root(project(**changes)):
        return call()


def _run(kind: str, options: dict[str, Any] | None = None, **changes: Any) -> Case:
    made = partial(tables.run, "curvatures", **(options or {}))
    return Case("tables.run", kind, lambda: in_project(made, **changes))


def _edited() -> object:
    text = "divergence,curvature\nreverse_kl,1.00\n"
    (project() / "tables" / "curvatures" / "table.csv").write_text(f"{text}pearson,two\n", encoding="utf-8")
    with project_root(folder() / "project"):
        return tables.load("curvatures")


def _without_gpu() -> object:
    found = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        return in_project(lambda: tables.run("curvatures", profile="gpu"), profiles={"gpu": {}})
    finally:
        torch.cuda.is_available = found


def _rows(rows: object) -> object:
    tables.write_rows(folder() / "rows.csv", rows)
    return rows


CASES = (
    Case("tables.load", "a misspelled table", lambda: in_project(lambda: tables.load("curvature"))),
    Case(
        "tables.load",
        "a name that leaves the folder",
        lambda: in_project(lambda: tables.load("../curvatures")),
    ),
    Case("tables.load", "an unknown profile", lambda: in_project(lambda: tables.load("curvatures", "tpu"))),
    Case("tables.load", "a table that was never made", lambda: in_project(lambda: tables.load("curvatures"))),
    Case("tables.load", "a cell that is no number", _edited),
    Case("tables.check", "a misspelled table", lambda: in_project(lambda: tables.check("curvature"))),
    Case(
        "tables.drift", "a table that was never made", lambda: in_project(lambda: tables.drift("curvatures"))
    ),
    Case("tables.run", "a misspelled table", lambda: in_project(lambda: tables.run("curvature"))),
    _run("no points at a time", {"jobs": 0}),
    _run("an unknown backend", {"backend": "slurm"}),
    _run("a backend without an address", {"backend": "dask"}),
    _run("an address without a backend", {"address": "tcp://host:8786"}),
    _run("a profile that the table has not", {"profile": "gpu"}),
    Case("tables.run", "no graphics card", _without_gpu),
    _run("a misspelled key of the manifest", colums={}),
    _run("a manifest without columns", columns=None),
    _run("a cost in words of one's own", cost="cheap"),
    _run("a grid that is no mapping", grid=["divergence"]),
    _run("an axis without a value", grid={"divergence": []}),
    _run("an axis with a value twice", grid={"divergence": ["pearson", "pearson"]}),
    _run("a number that YAML reads as a text", grid={"divergence": ["1e-3"]}),
    _run("a parameter that the notebook has not", parameters={"beta": 0.1}),
    _run("a misspelled parameter", grid={"divergense": ["pearson"]}),
    _run("a key that is no column", key=["seed"]),
    _run("an unknown type of a column", columns={"divergence": "text"}),
    _run("a notebook that does not exist", notebook="curvature.ipynb"),
    _run("a notebook outside the project", notebook="../curvatures.ipynb"),
    Case(
        "a notebook's parameters",
        "no cell that is tagged",
        lambda: in_project(lambda: tables.run("curvatures"), tags=()),
    ),
    Case(
        "a notebook's parameters",
        "no parameter for the rows",
        lambda: in_project(lambda: tables.run("curvatures"), assigned='divergence = "pearson"'),
    ),
    Case("tables.write_rows", "no rows", lambda: _rows([])),
    Case("tables.write_rows", "rows with different keys", lambda: _rows([{"a": 1}, {"b": 2}])),
    Case("tables.write_rows", "a tensor in a cell", lambda: _rows([{"a": torch.ones(())}])),
    Case("tables.write_rows", "a number instead of rows", lambda: _rows(3.0)),
)
