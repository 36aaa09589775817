"""Running a notebook once, in a process of its own: what it is given, and what it says when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kl_book.tables import provenance
from kl_book.tables.manifest import OUT
from kl_companion.files import write_atomically

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
WRITTEN, EXECUTED, LOG = "rows.part.csv", "executed.ipynb", "log.txt"  # what a run leaves in its folder
POINT = (sys.executable, "-m", "kl_book.tables.point")  # runs one specification


class TableError(RuntimeError):
    """A table could not be made: a run of its notebook failed, or its rows are not what the manifest says."""


class Backend(NamedTuple):
    """Where points run.

    `execute(notebook, parameters, folder)` runs one, leaves WRITTEN, EXECUTED and LOG in the folder and
    returns (0, "") or (another status, what went wrong). `jobs` is how many it runs at a time unless told
    otherwise, and `devices()` those that it has used, None for this machine.
    """

    execute: Callable[[Path, Mapping[str, Any], Path], tuple[int, str]]
    jobs: int
    devices: Callable[[], dict[str, str | None] | None]


def run_here(
    notebook: Path,
    parameters: Mapping[str, Any],
    folder: Path,
    variables: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run a notebook once, in a process of its own on this machine.

    Args:
        notebook: it runs in the folder that it lies in.
        parameters: for its cell tagged `parameters`, besides `out`.
        folder: what it leaves goes there: WRITTEN, EXECUTED and LOG.
        variables: further variables of its environment.

    Returns:
        0 and "", or another status and what the notebook says about its failure.
    """
    ipython = folder / "ipython"
    specification = {
        "notebook": str(notebook),
        "parameters": {**parameters, OUT: str(folder / WRITTEN)},
        "executed": str(folder / EXECUTED),
        "ipython": str(ipython),
    }
    write_atomically(folder / "specification.json", json.dumps(specification))
    environment = {**process_environment(), "IPYTHONDIR": str(ipython), **(variables or {})}
    return run_specification(folder / "specification.json", environment)


HERE = Backend(run_here, 1, lambda: None)


def run_specification(specification: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run `point.py`; its status and what it says about a failure, nothing where there is none.

    A kernel that ends may still complain, in its log, of a socket that is closed.
    """
    log = specification.with_name(LOG)
    command = [*POINT, str(specification)]
    with log.open("wb") as stream:
        # the pipe stays open as long as this process lives: the other one ends when it is closed
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=stream, stderr=stream, env=environment, cwd=log.parent
        )
        status = process.wait()
        if process.stdin:
            process.stdin.close()
    if status == 0:
        return 0, ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    begin = max((number for number, line in enumerate(lines) if line.startswith("cell [")), default=None)
    said = "\n".join(lines[-12:] if begin is None else lines[begin:])
    if status < 0:
        said = f"Its process was killed by signal {-status}: was the memory full? {said}".rstrip()
    elif not said:
        said = f"Its process ended with {status} and said nothing: is the disk full?"
    return status, said


def process_environment() -> dict[str, str]:
    """The variables of a run: one thread, a fixed hash seed, and the package that was digested."""
    root = provenance.PACKAGE_ROOT
    paths = [str(root), str(root / "book"), os.environ.get("PYTHONPATH", "")]
    fixed = {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), **fixed}
