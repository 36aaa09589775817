"""Real schedulers and workers over TCP, to run points of a table on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from kl_book.tables import provenance

PATIENCE = 60.0


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s until {what}"
        time.sleep(0.02)
    return found


class Started:
    """A scheduler, and workers of one thread each; a worker's temporary files are below `temporary`."""

    def __init__(self, folder: Path) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.address = ""
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, package: Path = provenance.PACKAGE_ROOT) -> subprocess.Popen[bytes]:
        """A process of the cluster that imports the package below a folder, away from any project."""
        environment = {
            **os.environ,
            "PYTHONPATH": f"{package}{os.pathsep}{Path(package) / 'book'}",
            "TMPDIR": str(self.temporary),
        }
        command = [sys.executable, "-m", *arguments]
        with (self.temporary.parent / "cluster.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self.temporary, start_new_session=True
            )
        self.processes.append(process)
        return process

    def worker(self, package: Path = provenance.PACKAGE_ROOT) -> subprocess.Popen[bytes]:
        options = ["--no-nanny", "--nthreads", "1", "--no-dashboard"]
        return self.start("distributed.cli.dask_worker", self.address, *options, package=package)


@contextmanager
def started(folder: Path, workers: int) -> Iterator[Started]:
    """A dask cluster of real processes, reached by TCP."""
    found = Started(folder)
    try:
        file = folder / "scheduler.json"
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
        found.start("distributed.cli.dask_scheduler", *options)
        found.address = wait_until(lambda: address_in(file), "the scheduler listens")
        for _ in range(workers):
            found.worker()
        wait_until(lambda: count(found.address) == workers, "the workers have come")
        yield found
    finally:
        for process in found.processes:
            family = [process, *alive_below(process)]
            for each in family:
                each.kill()
            process.wait()


def address_in(file: Path) -> str:
    try:
        return str(json.loads(file.read_text())["address"])
    except (FileNotFoundError, ValueError):
        return ""


def count(address: str) -> int:
    from distributed import Client

    with Client(address, timeout=PATIENCE, set_as_default=False) as client:
        return len(client.nthreads())


def alive_below(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
