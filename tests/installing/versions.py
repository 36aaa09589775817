"""Other releases than those of requirements.lock: do the tests of the core pass with them?

The rows are those of the matrix in `.github/workflows/versions.yml`. `make versions` tries all of them here,
and `make lowest` the oldest releases that pyproject.toml allows. Where the index has torch for CUDA only, a
row is a download of several gigabytes; TORCH_INDEX=<address> names another.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.installing import others
from tests.installing.trying import LOCK, ROOT, Report, call, environment

WORKFLOW = ROOT / ".github/workflows/versions.yml"
NEEDED = (
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "beartype",
    "seaborn",
    "font-source-sans-pro",
    "PyYAML",
    "safetensors",
)


class Row(NamedTuple):
    """One environment: its name, the version of Python as "3.12", and requirements, torch first."""

    name: str
    python: str
    install: list[str]


def rows() -> list[Row]:
    """Return the environments of the workflow's matrix."""
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["versions"]["strategy"]["matrix"]["include"]
    return [Row(row["name"], row["python"], row["install"].split()) for row in matrix]


def lower_bounds() -> list[str]:
    """Return the pins of the oldest allowed release of each dependency, as ``["torch==2.7.*", ...]``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [re.sub(r">=([\d.]+).*", r"==\1.*", dependency) for dependency in project["dependencies"]]


def try_row(report: Report, row: Row, wheel: Path, folder: Path, env: dict[str, str]) -> None:
    """Install the releases of a row and run the tests of the core with them."""
    pythons = {**others.found(), sys.version_info[1]: Path(sys.executable)}
    interpreter = pythons.get(int(row.python.partition(".")[2]))
    if interpreter is None:
        report.add(row.name, "everything", 0, "not tried", f"no Python {row.python} on this machine")
        return
    with report.trying(row.name, "pip install"):
        python = environment(interpreter, folder / row.name, None, env)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        index = os.environ.get("TORCH_INDEX")
        where = ["--index-url", index] if index else []
        call(*pip, *where, row.install[0], cwd=folder, env=env, timeout=3600)
        pins = {line.split("==")[0]: line for line in LOCK.read_text(encoding="utf-8").splitlines()}
        call(*pip, str(wheel), *row.install, *(pins[package] for package in NEEDED), cwd=folder, env=env)
    if report.outcomes[-1].status == "failed":
        return
    with report.trying(row.name, "tests of the core") as notes:
        command = [python, "tests/run.py", "quick", "-p", "no:cacheprovider"]
        printed = call(*command, cwd=ROOT, env=env, timeout=3600)
        notes += [" ".join(row.install), re.findall(r"\d+ passed.*", printed)[-1]]
