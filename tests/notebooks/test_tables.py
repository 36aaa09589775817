"""The project's own tables: all of them in order, each able to run, the quick ones the same byte for byte."""

import json
from pathlib import Path

import pytest
import yaml

from kl_book import tables
from kl_book.tables import notebook_process
from kl_book.tables.confirmation import differences
from kl_book.tables.manifest import read_manifest
from kl_book.tables.planning import plan
from kl_book.tables.store import read_rows
from tests.support import warm

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = {path.parent.name: path for path in sorted(ROOT.glob("tables/*/manifest.yml"))}
# made by an older formula, and to be made again: each takes an hour and more, some of them a real model
WAITING = {"real_distillation", "real_rl"}
# those that need a real model are tried by `make real`
HERE = {name: path for name, path in MANIFESTS.items() if "\nneeds:" not in path.read_text(encoding="utf-8")}


def _repeatable(manifest: Path) -> bool:
    data = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    return data.get("cost") == "seconds" and data.get("deterministic") is True


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KL_COMPANION_ROOT", raising=False)
    monkeypatch.chdir(ROOT)
    # papermill takes longer to import than most of these points to run
    monkeypatch.setattr(notebook_process, "POINT", (*warm.command(), *notebook_process.POINT[1:]))


def test_there_are_tables() -> None:
    assert tables.names() == list(MANIFESTS)
    assert MANIFESTS, "tables/ holds no table"


def test_no_table_has_a_problem_but_those_that_wait_for_hours() -> None:
    problems = tables.check()
    assert [line for line in problems if ": table.csv is older than kl_companion/" not in line] == []
    assert {line.partition(":")[0] for line in problems} == WAITING


def _smoke(name: str) -> object:
    """A smoke run of one point does what the notebook does by itself, which is executed with all others."""
    alone = plan(name, profile="smoke", fresh=True).total == 1
    return pytest.param(name, marks=pytest.mark.reliability if alone else ())


# those of seconds are made whole below
@pytest.mark.parametrize("name", [_smoke(name) for name, path in HERE.items() if not _repeatable(path)])
def test_the_smoke_profile_runs(name: str, tmp_path: Path) -> None:
    frame = tables.run(name, profile="smoke", jobs=2, into=tmp_path)
    assert len(frame) > 0
    assert list(frame.columns) == list(tables.load(name).columns)


@pytest.mark.parametrize("name", [name for name, path in HERE.items() if _repeatable(path)])
def test_a_quick_table_is_the_same(name: str, tmp_path: Path) -> None:
    """Byte for byte on the processor that made it, else within the tolerance of its manifest."""
    tables.run(name, jobs=2, into=tmp_path)
    again, kept = tmp_path, ROOT / "tables" / name
    if (again / "table.csv").read_bytes() == (kept / "table.csv").read_bytes():
        return
    devices = [json.loads((folder / "provenance.json").read_text())["device"] for folder in (again, kept)]
    assert devices[0] != devices[1], f"the same processor made another {name}"
    manifest = read_manifest(name)
    rows = [read_rows(folder / "table.csv", manifest.columns) for folder in (again, kept)]
    assert len(rows[0]) == len(rows[1])
    assert differences(*rows, manifest.columns, manifest.key, manifest.tolerance) == []


def test_the_time_of_every_table_is_known() -> None:
    plans = [plan(name, fresh=True) for name in MANIFESTS]
    assert [p.name for p in plans if p.seconds is None] == []
    assert all(p.todo == p.total > 0 for p in plans)
