"""The toy project, and what it takes to edit, run and look at it."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kl_book.tables import notebook_process
from tests.support.tables.toy import MANIFEST, PARAMETERS, TABLE, WORK, notebook, write_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toy project of which nothing has been run; the working directory is inside it."""
    root = write_project(tmp_path / "project")
    monkeypatch.delenv("KL_COMPANION_ROOT", raising=False)
    monkeypatch.chdir(root / "book")
    return root


@pytest.fixture
def edit(project: Path) -> Callable[[str, str, str], None]:
    """Replace a piece of text that stands once in a file of the toy project."""

    def replace(path: str, old: str, new: str) -> None:
        text = (project / path).read_text()
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
        (project / path).write_text(text.replace(old, new))

    return replace


@pytest.fixture(scope="session")
def toy() -> dict[str, Any]:
    """The pieces of the toy project."""
    pieces = {"parameters": PARAMETERS, "work": WORK, "manifest": MANIFEST, "table": TABLE}
    return {**pieces, "notebook": notebook, "write_project": write_project}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Run the cells of a notebook in this process, not by papermill; returns the parameters of each run."""
    runs: list[dict[str, Any]] = []

    def process(specification: Path, environment: Mapping[str, str]) -> tuple[int, str]:
        given = json.loads(specification.read_text())
        cells = json.loads(Path(given["notebook"]).read_text())["cells"]
        runs.append(given["parameters"])
        space: dict[str, Any] = {}
        try:
            exec("".join(cells[0]["source"]), space)
            space.update(given["parameters"])
            exec("".join(cells[1]["source"]), space)
        except RuntimeError as error:
            return 1, f"cell [2]: {error}"
        return 0, ""

    monkeypatch.setattr(notebook_process, "run_specification", process)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return runs


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {os.fspath(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(name="tree")
def tree_fixture() -> Callable[[Path], dict[str, bytes]]:
    """The function that takes a picture of a folder."""
    return tree
