"""Making a result table: one run of its notebook per point of the grid, in parallel, resumable.

Every point runs in a process of its own, with one thread for arithmetic, so that neither the number of jobs
nor their order changes a byte. A finished point is kept under `_build/tables/<name>/<profile>/`, in a folder
named by the digest of all that it depends on; the table and its provenance are put into `tables/<name>/` at
the very end, each in one move. So a run may be killed at any time and repeated. Two runs of one table do not
share these folders: the second one waits, and then finds the points of the first.

Where a point runs is one function, `Backend.execute`: here (`notebook_process.py`) or on a cluster
(`cluster.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kl_book.file_lock import exclusive_lock
from kl_book.tables import cluster, provenance
from kl_book.tables.grid import SECONDS, Point, points_of, unfinished
from kl_book.tables.manifest import ON_GPU, OUT, Manifest, read_manifest, settings
from kl_book.tables.needs import lacking
from kl_book.tables.notebook_process import EXECUTED, HERE, WRITTEN, Backend, TableError
from kl_book.tables.project import book_extra
from kl_book.tables.rows import Row, parse, render
from kl_book.tables.store import provenance_path, table_path, to_frame, work_folder
from kl_companion.files import write_atomically, write_together

if TYPE_CHECKING:
    import pandas as pd

QUIET_SECONDS = 2.0
LOCK = "lock"  # held by the run that uses the folder of a profile


def run(
    name: str,
    *,
    profile: str = "cpu",
    jobs: int | None = None,
    progress: Callable[[str], None] | None = None,
    fresh: bool = False,
    into: str | os.PathLike[str] | None = None,
    backend: str | None = None,
    address: str | None = None,
) -> pd.DataFrame:
    """Compute a result table; while another run of it is under way, wait until that has ended.

    Args:
        name: a folder of `tables/`.
        profile: "cpu" writes `table.csv`, "gpu" `table.gpu.csv`; "smoke" and "gpu_short" never
            touch `tables/`.
        jobs: number of points that run at the same time; by default one, or as many as the workers of the
            cluster have threads. A table of timings, `alone` in its manifest, runs one in any case.
        progress: receives a line per finished point; by default they go to the standard error stream as soon
            as the run has taken two seconds.
        fresh: run all points, also those that an earlier run has finished.
        into: a folder for the table, its provenance and the finished points, instead of their usual places.
        backend: "dask" runs the points on an existing cluster, None on this machine.
        address: of the cluster's scheduler, `tcp://host:port`.

    Returns:
        The table, as `load` returns it.

    Raises:
        ValueError: an unknown table or profile, a manifest that is not right, a parameter that the notebook
            does not know, `jobs` below 1, an unknown backend, an address that is missing or malformed.
        TableError: a notebook failed or handed over wrong rows, or a worker of the cluster holds other code
            than this machine. Other points stay finished, and the table is as it was.
        RuntimeError: profile "gpu" or "gpu_short" without a CUDA device.
        ImportError: a package of `book/pyproject.toml`, what the backend needs, or the model that the table
            needs is not installed. On a cluster the workers need the model, and this machine does not.
        ConnectionError: nothing answers at the address, or the cluster has no worker.
    """
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise ValueError(f"jobs is {jobs!r}, expected a whole number from 1 on")
    manifest = read_manifest(name)
    settings(manifest, profile)
    connected = _backend(backend, address)
    if backend is None and profile in ON_GPU and provenance.gpu_name() is None:
        raise RuntimeError(f"profile {profile!r} of table {name!r} needs a CUDA device, and torch finds none")
    for module in ("joblib", "papermill"):
        book_extra(module)
    if (line := lacking(manifest)) and backend is None:
        raise ImportError(line)
    report = _reporter(progress, time.monotonic())
    work = Path(into).resolve() / "points" if into else work_folder(manifest, profile)
    target = Path(into).resolve() / "table.csv" if into else table_path(manifest, profile)
    waiting = f"{name}: another run of this table is under way, this one waits for it to end"
    with exclusive_lock(work / LOCK, lambda: _say(progress, waiting)):
        manifest = read_manifest(name)  # as it is by now
        clock, record = time.monotonic(), provenance.begin(manifest, profile)
        every = points_of(manifest, record, work)
        todo = unfinished(every, fresh=fresh)
        with connected(manifest, record) if todo else nullcontext(HERE) as chosen:
            at_a_time = 1 if manifest.alone else jobs or chosen.jobs
            _run_points(manifest, todo, len(every), at_a_time, chosen, report)
            record["device"] = chosen.devices() or record["device"]
        rows = [row for point in every for row in _read(manifest, point, point.rows)]
        try:
            table = render(rows, manifest.columns, manifest.key, record["grid"])
        except ValueError as error:
            raise TableError(f"{name}: {error}") from None
        record = provenance.finish(
            record,
            table=table,
            seconds=time.monotonic() - clock,
            resumed=len(every) - len(todo),
            taken=[point.seconds() for point in every],
        )
        _remove_abandoned(work)
        if todo or not _made(target, table, record):
            text = json.dumps(record, sort_keys=True, indent=2) + "\n"
            write_together({target: table, provenance_path(target): text}, work)
    return to_frame(parse(table, manifest.columns), manifest.columns)


def _remove_abandoned(work: Path) -> None:
    """Remove what a killed run was writing; what it left of a point goes when the point is run again."""
    for part in [*work.glob("*.part"), *work.glob("*/*.part")]:
        part.unlink(missing_ok=True)


def _backend(
    backend: str | None, address: str | None
) -> Callable[[Manifest, Mapping[str, Any]], AbstractContextManager[Backend]]:
    """How to reach the place where points run; what is wrong with the arguments is said at once."""
    if backend is None:
        if address is not None:
            raise ValueError(f"address is {address!r} without a backend, expected backend dask with it")
        return lambda manifest, record: nullcontext(HERE)
    cluster.checked(backend, address)
    return partial(cluster.connect, backend, str(address))


def _run_points(
    manifest: Manifest,
    todo: list[Point],
    total: int,
    jobs: int,
    backend: Backend,
    report: Callable[[str], None],
) -> None:
    """Run points; after a failure those under way are finished, and no others begun."""
    joblib = book_extra("joblib")
    failed = threading.Event()
    errors: list[str] = []
    done = total - len(todo)
    if done:
        report(f"{manifest.name} [{done}/{total}] finished before")

    def attempt(point: Point) -> tuple[Point, float, str | None]:
        begin = time.monotonic()
        try:
            error = None if failed.is_set() else _run_point(manifest, point, backend)
            seconds = time.monotonic() - begin
            if error is None and point.rows.is_file():
                write_atomically(point.folder / SECONDS, f"{seconds:.1f}\n")
        except OSError as reason:  # a full disk
            error = f"{manifest.name}, point {point.named()}failed. {type(reason).__name__}: {reason}"
        if error:
            failed.set()
        return point, time.monotonic() - begin, error

    # threads suffice: each only waits for the process of its point, or for the cluster
    parallel = joblib.Parallel(
        n_jobs=jobs, backend="threading", return_as="generator_unordered", pre_dispatch=jobs
    )
    for point, seconds, error in parallel(joblib.delayed(attempt)(point) for point in todo):
        if error:
            errors.append(error)
        elif point.rows.is_file():
            done += 1
            report(f"{manifest.name} [{done}/{total}] {point.named()}{seconds:.1f} s")
    if errors:
        raise TableError("\n".join(errors))


def made_rows(manifest: Manifest, point: Point, backend: Backend) -> list[Row]:
    """Run one point in its folder, and return its rows.

    Raises:
        TableError: the notebook failed, or handed over wrong rows.
    """
    if error := _run_point(manifest, point, backend):
        raise TableError(error)
    return _read(manifest, point, point.rows)


def _run_point(manifest: Manifest, point: Point, backend: Backend) -> str | None:
    """Run one point and keep its rows; the message if that fails, else None."""
    point.rows.unlink(missing_ok=True)
    shutil.rmtree(point.folder, ignore_errors=True)
    point.folder.mkdir(parents=True, exist_ok=True)
    written, executed = point.folder / WRITTEN, point.folder / EXECUTED
    status, message = backend.execute(manifest.notebook, point.parameters, point.folder)
    if status == 0:
        try:
            _read(manifest, point, written)
            written.replace(point.rows)
            return None
        except TableError as error:
            return str(error)
    so_far = f"\nExecuted so far: {executed}" if executed.is_file() else ""
    return f"{manifest.name}, point {point.named()}failed. {message}{so_far}"


def _read(manifest: Manifest, point: Point, path: Path) -> list[Row]:
    """The checked rows of a point."""
    where = f"{manifest.name}, point {point.named()}"
    if not path.is_file():
        wanted = f"expected tables.write_rows({OUT}, rows) in {manifest.notebook.name}"
        raise TableError(f"{where}no rows were written, {wanted}")
    try:
        return parse(path.read_text(encoding="utf-8"), manifest.columns, point.values)
    except ValueError as error:
        raise TableError(f"{where}{error}") from None


def _say(progress: Callable[[str], None] | None, line: str) -> None:
    """Say something at once."""
    if progress is not None:
        progress(line)
    else:
        print(line, file=sys.stderr, flush=True)


def _reporter(progress: Callable[[str], None] | None, clock: float) -> Callable[[str], None]:
    """Where the lines about finished points go."""

    def report(line: str) -> None:
        elapsed = time.monotonic() - clock
        if elapsed > QUIET_SECONDS:
            print(f"{line} ({elapsed:.0f} s since the start)", file=sys.stderr, flush=True)

    return progress or report


def _made(target: Path, table: str, record: Mapping[str, Any]) -> bool:
    """Is this very table in its place already? Then its provenance tells of the run that did the work."""
    path = provenance_path(target)
    if not target.is_file() or not path.is_file() or target.read_bytes() != table.encode():
        return False
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return all(old.get(field) == record[field] for field in ("digests", "versions", "grid", "parameters"))
