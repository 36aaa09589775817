"""What a worker of a cluster does with a point of a table: compare the code, run it, hand three files back.

A task is a project in small: the notebook, and the tables that it loads. It becomes a temporary folder, and
the point runs there just as it would on the driver (`notebook_process.run_here`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from kl_book.tables import provenance
from kl_book.tables.notebook_process import EXECUTED, LOG, WRITTEN, process_environment, run_here
from kl_book.tables.temporary_folder import temporary_folder
from kl_companion.files import ROOT_VARIABLE

CACHE_VARIABLE = "KL_COMPANION_CACHE"  # where trained start models are kept
FOLDER = "kl-worker-"  # how the names of the folders begin that points run in


class PointTask(NamedTuple):
    """Files by path below the project root, which one is the notebook, and the code that must be here."""

    files: dict[str, str]
    notebook: str
    package_files: dict[str, str]
    versions: dict[str, str | None]
    gpu: bool


class Worker(NamedTuple):
    """The code that a worker holds, and the device that it computes on."""

    package_files: dict[str, str]
    versions: dict[str, str | None]
    device: dict[str, str | None]


class Outcome(NamedTuple):
    """What a worker sends back: status and message as from `run_here`, and the bytes of what was left."""

    status: int
    message: str
    files: dict[str, bytes]
    device: dict[str, str | None]


def identify(task: PointTask) -> Worker:
    """What this worker holds of the code that a task uses."""
    with temporary_folder(FOLDER) as folder:
        return _identify(task, _written(task, folder))


def run_task(task: PointTask, parameters: dict[str, Any]) -> Outcome:
    """Run one point in a temporary folder of its own, unless the code here is another than the driver's."""
    with temporary_folder(FOLDER) as folder:
        root = folder.resolve()
        notebook = _written(task, root)
        worker = _identify(task, notebook)
        if said := refusal(socket.gethostname(), worker, task):
            return Outcome(1, said, {}, worker.device)
        point = root / "point"
        point.mkdir()
        cache = os.environ.get(CACHE_VARIABLE) or str(Path.home() / ".cache" / "kl_companion")
        status, message = run_here(
            notebook, parameters, point, {ROOT_VARIABLE: str(root), CACHE_VARIABLE: cache}
        )
        left = [point / name for name in (LOG, EXECUTED, WRITTEN)]
        return Outcome(status, message, {f.name: f.read_bytes() for f in left if f.is_file()}, worker.device)


def refusal(name: str, worker: Worker, task: PointTask) -> str | None:
    """Why a worker may not take part, and what to do about it; None when it may."""
    for library, here in task.versions.items():
        if (there := worker.versions.get(library)) != here:
            what = f"has {library} {there}, expected {here} as on this machine"
            return f"worker {name} {what}. Install requirements.lock there, and start the worker again."
    if worker.package_files != task.package_files:
        here, there = (provenance.package_digest(x.package_files) for x in (task, worker))
        files = sorted({path for path, _ in worker.package_files.items() ^ task.package_files.items()})
        return (
            f"worker {name} holds the package digest {there}, expected {here} as on this machine; "
            f"the difference is in {', '.join(files)}. Install the same version of kl_companion there, or "
            "update the checkout that the worker runs from, and repeat the command: finished points are kept."
        )
    if task.gpu and worker.device["gpu"] is None:
        return f"worker {name} has no CUDA device that torch finds, and this profile needs one."
    return None


def _written(task: PointTask, root: Path) -> Path:
    """Write the files of a task below a folder; the path of its notebook."""
    (root / "tables").mkdir()
    for name, text in {"_toc.yml": "", **task.files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    return root / task.notebook


def _identify(task: PointTask, notebook: Path) -> Worker:
    device = {"gpu": _gpu() if task.gpu else None, "processor": provenance.processor_name()}
    return Worker(provenance.package_files(notebook), provenance.versions(), device)


@lru_cache(maxsize=1)
def _gpu() -> str | None:
    """The name of the GPU, asked in another process: a worker lives long, and would keep memory on it."""
    code = "from kl_book.tables.provenance import gpu_name; print(gpu_name() or '')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=process_environment(), capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
