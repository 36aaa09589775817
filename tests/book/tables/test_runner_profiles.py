"""Profiles of a table: smoke tests and short runs leave `tables/` alone, a GPU has its own files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kl_book import tables
from kl_book.tables import provenance
from tests.support.tables.network import quiet

Edit = Callable[[str, str, str], None]
Runs = list[dict[str, Any]]
Tree = Callable[[Path], dict[str, bytes]]
FILE, NOTEBOOK = "tables/toy/manifest.yml", "book/experiments/toy.ipynb"


def test_smoke_never_touches_tables(project: Path, quick: Runs, tree: Tree) -> None:
    before = tree(project / "tables")
    frame = tables.run("toy", profile="smoke", progress=quiet)
    assert tree(project / "tables") == before
    assert frame["value"].tolist() == [0.0, 0.167, 0.0, -0.167]
    assert frame.equals(tables.load("toy", profile="smoke"))
    tables.run("toy", progress=quiet)
    assert [run["scale"] for run in quick] == [0.5, 0.5, 2.0, 2.0, 2.0, 2.0]


def test_a_gpu_table_has_its_own_files(
    project: Path, edit: Edit, quick: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "gpu_name", lambda: None)
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        tables.run("toy", profile="gpu")
    monkeypatch.setattr(provenance, "gpu_name", lambda: "A device")
    tables.run("toy", profile="gpu", progress=quiet)
    files = sorted(path.name for path in (project / "tables/toy").iterdir())
    assert files == ["manifest.yml", "provenance.gpu.json", "table.gpu.csv"]
    assert tables.load("toy", profile="gpu")["value"].max() == 2.0
    assert json.loads((project / "tables/toy/provenance.gpu.json").read_text())["device"]["gpu"] == "A device"
    edit(FILE, ", gpu: {scale: 3.0}", "")
    with pytest.raises(ValueError, match="has no profile 'gpu'"):
        tables.run("toy", profile="gpu")


def test_a_short_run_on_a_gpu_never_touches_tables(
    project: Path, edit: Edit, quick: Runs, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="has no profile 'gpu_short'"):
        tables.run("toy", profile="gpu_short")
    edit(FILE, "gpu: {scale: 3.0}", "gpu_short: {scale: 3.0}")
    before = tree(project / "tables")
    monkeypatch.setattr(provenance, "gpu_name", lambda: None)
    with pytest.raises(RuntimeError, match="profile 'gpu_short' of table 'toy' needs a CUDA device"):
        tables.run("toy", profile="gpu_short")
    monkeypatch.setattr(provenance, "gpu_name", lambda: "A device")
    frame = tables.run("toy", profile="gpu_short", progress=quiet)
    assert tree(project / "tables") == before
    assert frame.equals(tables.load("toy", profile="gpu_short"))
