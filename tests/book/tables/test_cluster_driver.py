"""Points on another machine: what the driver makes of a cluster's answers, and what it refuses."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kl_book import tables
from kl_book.__main__ import main
from kl_book.tables import cluster, provenance, worker
from tests.support.tables.network import free_port, quiet

Edit = Callable[[str, str, str], None]
Runs = list[dict[str, Any]]
FILE, NOTEBOOK = "tables/toy/manifest.yml", "book/experiments/toy.ipynb"


# -- a cluster that answers in this process: what the driver makes of it -------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, quick: Runs) -> Iterator[dict[str, Any]]:
    """A cluster whose answers a test may change; it listens, and runs points in this process."""

    def call(function: Any, task: Any, parameters: dict[str, Any]) -> Any:
        if error := given["lost"].get(parameters["seed"]):
            raise error
        if given["together"]:
            given["together"].wait(10.0)  # until as many are here
        return function(task, parameters)

    @contextmanager
    def fake(module: Any, address: str) -> Iterator[cluster.Cluster]:
        yield cluster.Cluster(
            lambda f, *a: {name: f(*a) for name in given["workers"]}, call, lambda: given["slots"]
        )

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        given: dict[str, Any] = {"workers": ["w"], "lost": {}, "address": address, "slots": 1}
        given["together"] = None
        monkeypatch.setitem(cluster.BACKENDS, "dask", fake)
        yield given


def test_a_point_that_is_given_up_leaves_the_others_finished(
    project: Path, answers: dict[str, Any], quick: Runs, toy: dict[str, Any]
) -> None:
    answers["lost"][1] = cluster.Lost("It was given up.")
    with pytest.raises(tables.TableError, match=r"^toy, point method=b seed=1: failed. It was given up.$"):
        tables.run("toy", backend="dask", address=answers["address"], progress=quiet)
    assert len(quick) == 1
    answers["lost"].clear()
    lines: list[str] = []
    tables.run("toy", backend="dask", address=answers["address"], progress=lines.append)
    assert lines[0] == "toy [1/4] finished before"
    assert (project / "tables/toy/table.csv").read_text() == toy["table"]


@pytest.mark.parametrize(("slots", "jobs"), [(2, None), (1, 2), (4, 2)])
def test_as_many_points_are_under_way_as_wanted(
    project: Path, answers: dict[str, Any], quick: Runs, toy: dict[str, Any], slots: int, jobs: int | None
) -> None:
    answers |= {"slots": slots, "together": threading.Barrier(2)}  # with one at a time, it would break
    tables.run("toy", jobs=jobs, backend="dask", address=answers["address"], progress=quiet)
    assert (project / "tables/toy/table.csv").read_text() == toy["table"]


def test_a_failing_notebook_is_told_as_from_here(
    project: Path, edit: Edit, answers: dict[str, Any], quick: Runs
) -> None:
    edit(NOTEBOOK, "if fail and seed == 1 and os.path.exists(fail):", "if seed == 1:")
    with pytest.raises(tables.TableError, match=r"method=b seed=1: failed. cell \[2\]: planted at seed 1"):
        tables.run("toy", backend="dask", address=answers["address"], progress=quiet)
    assert len(quick) == 2


def test_wrong_rows_are_refused_by_the_driver(
    project: Path, edit: Edit, answers: dict[str, Any], quick: Runs
) -> None:
    edit(NOTEBOOK, '\\"good\\": step > 0', '\\"god\\": 1')
    with pytest.raises(tables.TableError, match="the columns are"):
        tables.run("toy", backend="dask", address=answers["address"], progress=quiet)
    assert not list(project.glob("_build/tables/toy/cpu/*/rows.csv"))


def test_a_gpu_is_wanted_on_the_workers_and_not_here(
    project: Path, answers: dict[str, Any], quick: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "gpu_name", lambda: None)
    monkeypatch.setattr(worker, "_gpu", lambda: None)
    with pytest.raises(tables.TableError, match="worker w has no CUDA device"):
        tables.run("toy", profile="gpu", backend="dask", address=answers["address"])
    monkeypatch.setattr(worker, "_gpu", lambda: "A device")
    tables.run("toy", profile="gpu", backend="dask", address=answers["address"], progress=quiet)
    record = json.loads((project / "tables/toy/provenance.gpu.json").read_text())
    assert record["device"] == {"gpu": "A device", "processor": provenance.processor_name()}


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "address", "error", "message"),
    [
        ("spark", "tcp://here:1", ValueError, "unknown backend 'spark'.*dask"),
        ("dask", None, ValueError, "address is None, expected tcp://host:port: where the dask scheduler lis"),
        ("dask", "", ValueError, "address is '', expected tcp://host:port"),
        ("dask", "tcp://here", ValueError, "address is 'tcp://here', expected tcp://host:port"),
        ("dask", "tcp://here:port", ValueError, "expected tcp://host:port"),
        ("dask", "8786", ValueError, "address is '8786', expected tcp://host:port"),
        (None, "tcp://here:1", ValueError, "address is 'tcp://here:1' without a backend"),
    ],
)
def test_what_cannot_be_an_address_is_said_at_once(
    project: Path, backend: str | None, address: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tables.run("toy", backend=backend, address=address)
    assert not (project / "_build").exists()


def test_a_missing_library_names_what_brings_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"needs distributed.*pip install -e 'book\[cluster\]'"):
        tables.run("toy", backend="dask", address="tcp://here:1")


def test_nothing_listens(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    start = time.monotonic()
    assert main(["table", "run", "toy", "--backend", "dask", "--address", address]) == 2
    assert time.monotonic() - start < 10
    assert f"\nkl_book: no dask scheduler answers at {address}: " in capsys.readouterr().err


def test_what_listens_is_no_scheduler(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"no dask scheduler answers at {address}"):
            tables.run("toy", backend="dask", address=address)


def test_jobs_stay_two_here_and_follow_the_cluster_there(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(tables, "run", lambda name, **options: given.append(options["jobs"]) or [])
    there = ["--backend", "dask", "--address", "tcp://here:1"]
    for extra in ([], ["--jobs", "3"], there, [*there, "--jobs", "3"], ["--jobs", "0"]):
        assert main(["table", "run", "toy", *extra]) == 0
    assert given == [2, 3, None, 3, 0]
