"""Making a table: the grid, finished points, failures, provenance. Only the first two tests run papermill."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kl_book import tables
from kl_book.file_lock import exclusive_lock
from kl_book.tables import notebook_process, provenance, runner
from tests.support.data import data
from tests.support.tables.network import quiet

DATA = data(__file__)
Edit = Callable[[str, str, str], None]
Runs = list[dict[str, Any]]
Tree = Callable[[Path], dict[str, bytes]]
FILE, NOTEBOOK = "tables/toy/manifest.yml", "book/experiments/toy.ipynb"


def test_papermill_runs_every_point_once_and_alone(
    project: Path, edit: Edit, toy: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    edit(FILE, "{scale: 2.0}", f"{{scale: 2.0, log: {project}/log}}")
    frame = tables.run("toy", jobs=2)
    assert (project / "tables/toy/table.csv").read_text() == toy["table"]
    assert frame.equals(tables.load("toy"))
    folder = project / "book/experiments"
    want = [f"{method}{seed} 1 {folder} ipc" for method in "ab" for seed in (0, 1)]
    assert sorted((project / "log").read_text().splitlines()) == want
    lines = capfd.readouterr().err.splitlines()
    assert all(
        re.fullmatch(r"toy \[\d/4\] method=. seed=.: [\d.]+ s \(\d+ s since the start\)", x) for x in lines
    )
    assert lines[-1].startswith("toy [4/4]")
    assert sorted(path.name for path in (project / "tables/toy").iterdir()) == [
        "manifest.yml", "provenance.json", "table.csv"
    ]  # fmt: skip


def test_a_failing_notebook_leaves_finished_points_and_no_table(
    project: Path, edit: Edit, toy: dict[str, Any]
) -> None:
    planted = project / "planted"
    edit(FILE, "{scale: 2.0}", f"{{scale: 2.0, fail: {planted}, log: {project}/log}}")
    planted.touch()
    with pytest.raises(tables.TableError) as caught:
        tables.run("toy", progress=quiet)
    message = str(caught.value)
    assert "toy, point method=b seed=1: failed. cell [3]:" in message
    assert "RuntimeError: planted at seed 1" in message
    assert "\x1b" not in message
    assert "executed.ipynb" in message
    assert [path.name for path in (project / "tables/toy").iterdir()] == ["manifest.yml"]
    assert len((project / "log").read_text().splitlines()) == 2
    planted.unlink()
    tables.run("toy", progress=quiet)
    assert [line[:2] for line in (project / "log").read_text().splitlines()] == ["b0", "b1", "b1", "a0", "a1"]
    assert (project / "tables/toy/table.csv").read_text() == toy["table"]


def test_finished_points_are_skipped_until_something_changes(
    project: Path, edit: Edit, quick: Runs, tree: Tree
) -> None:
    tables.run("toy", progress=quiet)
    before = tree(project / "tables")
    tables.run("toy", progress=quiet)
    assert len(quick) == 4
    assert tree(project / "tables") == before
    edit(FILE, "digits: 3", "digits: 4")
    lines: list[str] = []
    tables.run("toy", progress=lines.append)
    assert len(quick) == 4
    assert lines == ["toy [4/4] finished before"]
    assert "b,0,1,0.6667,0.00,True" in (project / "tables/toy/table.csv").read_text()
    record = json.loads((project / "tables/toy/provenance.json").read_text())
    assert record["points"] == {"resumed": 4, "total": 4, "seconds": pytest.approx(0, abs=60)}
    edit(FILE, "seed: [0, 1]", "seed: [0, 1, 2]")
    tables.run("toy", progress=quiet)
    assert [(run["method"], run["seed"]) for run in quick[4:]] == [("b", 2), ("a", 2)]
    tables.run("toy", progress=quiet, fresh=True)
    assert len(quick) == 12


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (NOTEBOOK, "sign * scale", "sign * 1 * scale"),
        (FILE, "scale: 2.0", "scale: 2.5"),
        (FILE, "step: int", "step: float"),
    ],
)
def test_a_change_of_the_sources_runs_all_points_again(
    project: Path, edit: Edit, quick: Runs, path: str, old: str, new: str
) -> None:
    tables.run("toy", progress=quiet)
    edit(path, old, new)
    tables.run("toy", progress=quiet)
    assert len(quick) == 8


def test_a_library_of_another_version_runs_all_points_again(
    project: Path, quick: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.run("toy", progress=quiet)
    monkeypatch.setattr(provenance, "versions", lambda: {"torch": "0"})
    tables.run("toy", progress=quiet)
    assert len(quick) == 8


def test_jobs_do_not_change_bytes(project: Path, quick: Runs, toy: dict[str, Any], tmp_path: Path) -> None:
    for jobs in (1, 2, 5):
        tables.run("toy", jobs=jobs, progress=quiet, into=tmp_path / str(jobs))
        assert (tmp_path / str(jobs) / "table.csv").read_text() == toy["table"]
    assert len(quick) == 12
    assert [path.name for path in (project / "tables/toy").iterdir()] == ["manifest.yml"]


def test_a_table_without_a_grid_is_one_run(project: Path, edit: Edit, quick: Runs) -> None:
    edit(FILE, "grid: {method: [b, a], seed: [0, 1]}\n", "")
    edit(FILE, "  method: str\n  seed: int\n", "")
    edit(FILE, "key: [method, seed, step]", "key: [step]")
    assert tables.run("toy", progress=quiet)["step"].tolist() == [0, 1]
    assert len(quick) == 1


@pytest.mark.parametrize(("old", "new", "message"), DATA["wrong_rows"])
def test_wrong_rows_are_refused(
    project: Path, edit: Edit, quick: Runs, old: str, new: str, message: str
) -> None:
    table = project / "tables/toy/table.csv"
    table.write_text("as it was")
    edit(NOTEBOOK, old, new)
    with pytest.raises(tables.TableError, match=message):
        tables.run("toy", progress=quiet)
    assert table.read_text() == "as it was"
    assert sorted(path.name for path in table.parent.iterdir()) == ["manifest.yml", "table.csv"]


def test_after_a_failure_no_point_is_begun(project: Path, edit: Edit, quick: Runs) -> None:
    edit(NOTEBOOK, "if fail and seed == 1 and os.path.exists(fail):", "if True:")
    with pytest.raises(tables.TableError, match="planted at seed 0"):
        tables.run("toy", progress=quiet)
    assert len(quick) == 1


@pytest.mark.parametrize("alone", ["true", "false"])
def test_timings_are_taken_one_at_a_time(
    project: Path, quick: Runs, edit: Edit, monkeypatch: pytest.MonkeyPatch, alone: str
) -> None:
    edit(FILE, "cost: seconds", f"cost: seconds\nalone: {alone}")
    run_point, at_once = runner._run_point, threading.Semaphore(2)
    most: list[int] = []

    def counted(*given: Any) -> str | None:
        with at_once:
            most.append(2 - at_once._value)
            time.sleep(0.1)  # for another one to begin beside it
            return run_point(*given)

    monkeypatch.setattr(runner, "_run_point", counted)
    tables.run("toy", jobs=2, progress=quiet)
    assert max(most) == (1 if alone == "true" else 2)


@pytest.mark.parametrize("jobs", [0, -1, True])
def test_jobs_is_a_number_from_one_on(project: Path, quick: Runs, jobs: Any) -> None:
    with pytest.raises(ValueError, match=r"jobs is .*, expected a whole number from 1 on"):
        tables.run("toy", jobs=jobs)
    assert not quick


def test_a_table_that_cannot_be_put_into_its_place(
    project: Path, edit: Edit, quick: Runs, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.run("toy", progress=quiet)
    before = tree(project / "tables/toy")
    edit(FILE, "digits: 3", "digits: 4")
    replace, full = os.replace, ["table.csv"]

    def refuse(source: Path, target: Path) -> None:
        if target.name in full:
            raise OSError("no space left")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space left"):
        tables.run("toy", progress=quiet)
    assert {**tree(project / "tables/toy"), "manifest.yml": before["manifest.yml"]} == before
    full[:] = ["provenance.json"]
    with pytest.raises(OSError, match="no space left"):
        tables.run("toy", progress=quiet)
    problems = tables.check()
    assert [problem.partition(" has changed")[0] for problem in problems] == [
        "toy: the manifest",
        "toy: the table",
    ]
    assert not [name for name in tree(project) if name.endswith(".part")]


def test_progress_counts(project: Path, quick: Runs) -> None:
    lines: list[str] = []
    tables.run("toy", progress=lines.append)
    assert [line.partition(":")[0] for line in lines] == [
        f"toy [{number}/4] method={method} seed={seed}"
        for number, (method, seed) in enumerate([("b", 0), ("b", 1), ("a", 0), ("a", 1)], start=1)
    ]


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Toy", "-c", "user.email=toy@example.org"]
    command = ["git", "-C", str(root), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_provenance_tells_where_a_table_comes_from(project: Path, quick: Runs) -> None:
    (project / ".gitignore").write_text("_build\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "Toy")
    tables.run("toy", progress=quiet)
    record = json.loads((project / "tables/toy/provenance.json").read_text())
    assert set(record) == set(provenance.FIELDS)
    assert record["commit"] == git(project, "rev-parse", "HEAD")
    assert record["dirty"] is False
    assert record["profile"] == "cpu"
    assert record["grid"] == {"method": ["b", "a"], "seed": [0, 1]}
    assert record["parameters"] == {"scale": 2.0}
    assert record["points"] == {"resumed": 0, "total": 4, "seconds": pytest.approx(0, abs=60)}
    assert set(record["digests"]) == {"manifest", "notebook", "package", "table"}
    assert set(record["versions"]) == {"python", "torch", "numpy", "sympy", "pandas"}
    assert record["device"]["processor"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["start"])
    assert 0 <= record["wall_seconds"] < 60
    assert list(record["package_files"]) == [
        "book/kl_book/tables/rows.py",
        *(f"kl_companion/{name}.py" for name in ("__init__", "files", "lazy")),
    ]
    tables.run("toy", progress=quiet, fresh=True)
    assert json.loads((project / "tables/toy/provenance.json").read_text())["dirty"] is False
    (project / "book/page.md").write_text("changed")
    tables.run("toy", progress=quiet, fresh=True)
    assert json.loads((project / "tables/toy/provenance.json").read_text())["dirty"] is True


def test_outside_a_repository_the_commit_is_null(project: Path, quick: Runs) -> None:
    tables.run("toy", progress=quiet)
    record = json.loads((project / "tables/toy/provenance.json").read_text())
    assert (record["commit"], record["dirty"]) == (None, None)


def test_a_second_run_waits_and_finds_what_the_first_one_made(project: Path, quick: Runs) -> None:
    ends, errors = threading.Event(), []
    process = notebook_process.run_specification

    def slow(specification: Path, environment: Mapping[str, str]) -> tuple[int, str]:
        waiting.wait(20)  # until the second run has come
        return process(specification, environment)

    def first() -> None:
        try:
            tables.run("toy", progress=quiet)
        except BaseException as error:
            errors.append(error)
        ends.set()

    waiting, said = threading.Event(), list[str]()

    def hear(line: str) -> None:
        said.append(line)
        waiting.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebook_process, "run_specification", slow)
        threading.Thread(target=first).start()
        while not list(project.glob("_build/tables/toy/cpu/*/specification.json")):
            assert not ends.wait(0.01), errors
        tables.run("toy", progress=hear)
    assert ends.wait(20)
    assert errors == []
    assert len(quick) == 4
    waits = "toy: another run of this table is under way, this one waits for it to end"
    assert said == [waits, "toy [4/4] finished before"]
    assert tables.check() == []


def test_other_profiles_do_not_wait_for_each_other(project: Path, quick: Runs) -> None:
    work = project / "_build/tables/toy/cpu"
    with exclusive_lock(work / runner.LOCK, lambda: None):
        tables.run("toy", profile="smoke", progress=quiet)
        tables.run("toy", into=project / "elsewhere", progress=quiet)
    assert len(quick) == 6


def test_what_a_killed_run_was_writing_is_removed(project: Path, quick: Runs, tree: Tree) -> None:
    tables.run("toy", progress=quiet)
    before = tree(project / "_build")
    rows = next((project / "_build/tables/toy/cpu").glob("*/rows.csv"))
    for path in (rows.with_name("ipython") / "x", rows.with_name("seconds.txt.1.part"), rows):
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    (rows.parents[1] / "table.csv.1.part").write_text("half")
    rows.unlink()
    tables.run("toy", progress=quiet)
    assert len(quick) == 5
    assert tree(project / "_build").keys() == before.keys()


def test_a_full_disk_fails_one_point_and_keeps_the_others(
    project: Path, quick: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = notebook_process.run_specification

    def full(specification: Path, environment: Mapping[str, str]) -> tuple[int, str]:
        if len(quick) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return process(specification, environment)

    monkeypatch.setattr(notebook_process, "run_specification", full)
    message = r"^toy, point method=b seed=1: failed. OSError: \[Errno 28\] No space left on device$"
    with pytest.raises(tables.TableError, match=message):
        tables.run("toy", progress=quiet)
    assert [(run["method"], run["seed"]) for run in quick] == [("b", 0)]


@pytest.mark.parametrize(("code", "status", "said"), DATA["processes"])
def test_a_process_that_ends_without_a_word(
    code: str, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook_process, "POINT", (sys.executable, "-c", code))
    assert notebook_process.run_specification(tmp_path / "specification.json", {}) == (status, said)
