"""Points on another machine: real schedulers and workers over TCP, some of them killed.

What starts a cluster of its own is marked `interruption`; the others need one worker or none.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from kl_book import tables
from kl_book.__main__ import main
from kl_book.tables import cluster, notebook_process, provenance, worker
from kl_book.tables.manifest import read_manifest
from tests.support.data import data
from tests.support.tables.clusters import PATIENCE, Started, count, started, wait_until
from tests.support.tables.network import quiet

DATA = data(__file__)


Edit = Callable[[str, str, str], None]
Runs = list[dict[str, Any]]
FILE, NOTEBOOK = "tables/toy/manifest.yml", "book/experiments/toy.ipynb"


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A dask scheduler without workers."""
    pytest.importorskip("distributed")
    with started(tmp_path_factory.mktemp("cluster"), 0) as found:
        yield found


# -- a whole table -------------------------------------------------------------------------------------------


def worker_of(temporary: Path, folder: str) -> psutil.Process:
    """The worker that runs the point whose notebook lies in a folder: the parent of the point's process."""
    root = Path(folder).parents[1]
    assert root.parent == temporary
    specification = str(root / "point" / "specification.json")
    for process in psutil.process_iter():
        try:
            if process.cmdline()[-1:] == [specification]:
                return process.parent()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    raise AssertionError(f"nothing runs {specification}")


@pytest.mark.interruption
def test_the_point_of_a_killed_worker_is_repeated_and_no_other(
    project: Path, edit: Edit, toy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    log, hang = project / "log", project / "hang"
    hang.touch()  # the point of seed 1 does not end before this file is gone
    edit(FILE, "{scale: 2.0}", f"{{scale: 2.0, hang: {hang}, log: {log}}}")
    edit(FILE, "method: [b, a]", "method: [b]")
    local = toy["table"].partition("a,0,0")[0]
    errors: list[BaseException] = []

    def drive() -> None:
        try:
            tables.run("toy", backend="dask", address=found.address, progress=quiet)
        except BaseException as error:
            errors.append(error)

    def begun() -> list[list[str]]:
        """Of each run of a point: its name, its number of threads, and the folder that it ran in."""
        return [line.split() for line in log.read_text().splitlines()] if log.is_file() else []

    with started(tmp_path, 1) as found:
        driver = threading.Thread(target=drive)
        driver.start()
        wait_until(lambda: errors or len(begun()) == 2, "the second point is under way")
        assert errors == []
        assert len(list(project.glob("_build/tables/toy/cpu/*/rows.csv"))) == 1
        victim = worker_of(found.temporary, begun()[1][2])
        assert victim.pid != os.getpid()  # nothing runs in the driver, even with one thread in all
        assert victim.pid == found.processes[1].pid
        found.worker()
        wait_until(lambda: count(found.address) == 2, "a second worker has come")
        victim.send_signal(signal.SIGKILL)
        hang.unlink()
        driver.join(PATIENCE)
        assert not driver.is_alive()
        assert errors == []

        assert [run[:2] for run in begun()] == [["b0", "1"], ["b1", "1"], ["b1", "1"]]
        assert len({run[2] for run in begun()}) == 3
        assert (project / "tables/toy/table.csv").read_bytes() == local.encode()
        record = json.loads((project / "tables/toy/provenance.json").read_text())
        assert record["device"] == {"gpu": None, "processor": provenance.processor_name()}
        assert record["points"] == {"resumed": 0, "total": 2, "seconds": pytest.approx(0, abs=600)}
        assert tables.check() == []
        kept = {path.name for path in project.glob("_build/tables/toy/cpu/*/*")}
        assert kept == {"rows.csv", "executed.ipynb", "log.txt", "seconds.txt"}
        tables.run("toy", backend="dask", address=found.address)
        assert len(begun()) == 3  # all is finished: nothing is sent

        monkeypatch.setattr(cluster, "ALONE_SECONDS", 1.0)
        edit(FILE, "scale: 2.0", "scale: 4.0")
        driver = threading.Thread(target=drive)
        driver.start()
        wait_until(lambda: errors or len(begun()) == 4, "a point of the next table is under way")
        found.processes[2].kill()
        driver.join(PATIENCE)
        assert "The cluster at tcp://127.0.0.1:" in str(errors[0])
        assert "has had no worker for 1 s" in str(errors[0])
        with pytest.raises(ConnectionError, match="has no worker: start one, and repeat"):
            tables.run("toy", backend="dask", address=found.address)
        assert (project / "tables/toy/table.csv").read_bytes() == local.encode()

    with pytest.raises(ConnectionError, match=f"no dask scheduler answers at {found.address}"):
        tables.run("toy", backend="dask", address=found.address, fresh=True)


# -- who is refused ------------------------------------------------------------------------------------------


@pytest.fixture
def other_package(tmp_path: Path) -> Path:
    """A copy of the package with another way to write rows."""
    root = tmp_path / "other"
    ignore = shutil.ignore_patterns("__pycache__")
    for package in ("kl_companion", "book/kl_book"):
        shutil.copytree(provenance.PACKAGE_ROOT / package, root / package, ignore=ignore)
    rows = root / "book/kl_book/tables/rows.py"
    text = rows.read_text()
    assert text.count('text.removeprefix("-") if') == 1
    rows.write_text(text.replace('text.removeprefix("-") if', "text if"))
    return root


def test_a_worker_with_another_package_is_refused(
    scheduler: Started, other_package: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = scheduler.worker(other_package)
    wait_until(lambda: count(scheduler.address) == 1, "the worker has come")
    assert main(["table", "run", "toy", "--backend", "dask", "--address", scheduler.address]) == 2
    process.kill()
    process.wait()
    wait_until(lambda: count(scheduler.address) == 0, "the worker has gone")
    said = capsys.readouterr().err
    here = provenance.digests(read_manifest("toy"), "cpu")["package"]
    assert "toy: no point was sent.\nworker tcp://" in said
    assert f"expected {here} as on this machine" in said
    there = said.partition("holds the package digest ")[2].partition(",")[0]
    assert len(there) == 64 != here
    assert there != here
    assert "the difference is in book/kl_book/tables/rows.py. Install the same version" in said
    assert [path.name for path in (project / "_build").rglob("*") if path.is_file()] == ["lock"]


def test_a_worker_without_the_package_is_refused(scheduler: Started, project: Path, tmp_path: Path) -> None:
    (tmp_path / "empty/kl_companion").mkdir(parents=True)
    absent = "raise ModuleNotFoundError(\"No module named 'kl_companion'\", name='kl_companion')\n"
    (tmp_path / "empty/kl_companion/__init__.py").write_text(absent)
    process = scheduler.worker(tmp_path / "empty")
    wait_until(lambda: count(scheduler.address) == 1, "the worker has come")
    with pytest.raises(
        tables.TableError, match=r"cannot use kl_companion \(.*Install the same version there"
    ):
        tables.run("toy", backend="dask", address=scheduler.address)
    process.kill()
    process.wait()
    wait_until(lambda: count(scheduler.address) == 0, "the worker has gone")


def task_of(profile: str = "cpu") -> worker.PointTask:
    manifest = read_manifest("toy")
    return cluster.pack(manifest, provenance.begin(manifest, profile))


@pytest.mark.parametrize(("changes", "message"), DATA["a_worker_that_came_late_or_changed_is_refused"])
def test_a_worker_that_came_late_or_changed_is_refused(
    project: Path, quick: Runs, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_gpu", lambda: None)
    task = task_of()
    assert worker.refusal("w", worker.identify(task), task) is None
    outcome = worker.run_task(task._replace(**changes), {"seed": 0})
    assert (outcome.status, outcome.files, quick) == (1, {}, [])
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(outcome.message)


# -- what travels --------------------------------------------------------------------------------------------


def test_the_tables_that_a_notebook_loads_travel_with_it(
    project: Path, edit: Edit, toy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(project / "tables/toy", project / "tables/other")
    shutil.copytree(project / "tables/toy", project / "tables/third")
    (project / "tables/other/table.csv").write_text(toy["table"])
    edit(NOTEBOOK, "tables.write_rows", "assert len(tables.load('other')) == 8\\ntables.write_rows")
    task = task_of()
    travels = {NOTEBOOK, "tables/other/manifest.yml", "tables/other/table.csv"}
    assert set(task.files) == travels
    manifest = project / "tables/other/manifest.yml"
    whole = manifest.read_text()
    manifest.write_text("title: like\nlike: third\n")
    assert set(task_of().files) == {*travels, "tables/third/manifest.yml"}
    manifest.write_text(whole)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    seen: list[Mapping[str, str]] = []
    process = notebook_process.run_specification

    def spy(specification: Path, environment: Mapping[str, str]) -> tuple[int, str]:
        seen.append(environment)
        return process(specification, environment)

    monkeypatch.setattr(notebook_process, "run_specification", spy)
    monkeypatch.setenv("KL_COMPANION_ROOT", str(project))  # a worker's own project plays no part
    outcome = worker.run_task(task, {"method": "b", "seed": 1, "scale": 2.0})
    assert (outcome.status, outcome.message) == (0, "")
    assert set(outcome.files) == {"rows.part.csv", "executed.ipynb", "log.txt"}
    assert outcome.files["rows.part.csv"].startswith(b"step,value,tiny,good\n1,1.33333")
    assert seen[0]["KL_COMPANION_ROOT"] != str(project)
    assert seen[0]["KL_COMPANION_CACHE"] == str(Path.home() / ".cache" / "kl_companion")
    assert not Path(seen[0]["KL_COMPANION_ROOT"]).exists()
