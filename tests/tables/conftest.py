"""A toy project with one table: its notebook needs neither torch nor a second of arithmetic."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kl_companion.tables import runner

PARAMETERS = """\
out = None
method = "a"
seed = 0
scale = 1.0
fail = None
hang = None
log = None
"""
WORK = """\
import os
import time

from kl_companion import tables

if log:
    from ipykernel.connect import get_connection_info

    transport = get_connection_info(unpack=True)["transport"]
    with open(log, "a") as stream:
        stream.write(f"{method}{seed} {os.environ['OMP_NUM_THREADS']} {os.getcwd()} {transport}\\n")
while hang and seed == 1 and os.path.exists(hang):
    time.sleep(0.02)
if fail and seed == 1 and os.path.exists(fail):
    raise RuntimeError(f"planted at seed {seed}")
sign = -1 if method == "a" else 1
rows = [
    {"step": step, "value": sign * scale * (seed + step) / 3, "tiny": -1e-9, "good": step > 0}
    for step in (1, 0)
]
tables.write_rows(out, rows)
"""
MANIFEST = """\
title: A toy
notebook: book/experiments/toy.ipynb
grid: {method: [b, a], seed: [0, 1]}
parameters: {scale: 2.0}
profiles: {smoke: {seed: [0], scale: 0.5}, gpu: {scale: 3.0}}
columns:
  method: str
  seed: int
  step: int
  value: {type: float, digits: 3}
  tiny: {type: float, digits: 2}
  good: bool
key: [method, seed, step]
cost: seconds
deterministic: true
"""
TABLE = """\
method,seed,step,value,tiny,good
b,0,0,0.000,0.00,False
b,0,1,0.667,0.00,True
b,1,0,0.667,0.00,False
b,1,1,1.333,0.00,True
a,0,0,0.000,0.00,False
a,0,1,-0.667,0.00,True
a,1,0,-0.667,0.00,False
a,1,1,-1.333,0.00,True
"""


def notebook(*cells: str, tagged: int = 0) -> str:
    """A notebook file with these code cells; the one at `tagged` holds the parameters."""
    content = [
        {
            "cell_type": "code",
            "id": f"cell{number}",
            "metadata": {"tags": ["parameters"]} if number == tagged else {},
            "execution_count": None,
            "outputs": [],
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate(cells)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": content, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    )


def write_project(root: Path) -> Path:
    """The files of the toy project; no table is made yet."""
    for folder in ("book/experiments", "tables/toy"):
        (root / folder).mkdir(parents=True)
    (root / "_toc.yml").write_text("root: book/page\n")
    (root / "book/page.md").write_text("```{csv-table}\n:file: ../tables/toy/table.csv\n```\n")
    (root / "book/experiments/toy.ipynb").write_text(notebook(PARAMETERS, WORK))
    (root / "tables/toy/manifest.yml").write_text(MANIFEST)
    return root


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

    monkeypatch.setattr(runner, "_process", process)
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
