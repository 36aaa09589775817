"""The project's own tables: all of them in order, each able to run, the quick ones the same byte for byte."""

from pathlib import Path

import pytest
import yaml

from kl_book import tables
from kl_book.tables import notebook_process
from kl_book.tables.planning import plan
from tests.support import warm

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = {path.parent.name: path for path in sorted(ROOT.glob("tables/*/manifest.yml"))}
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


def test_no_table_has_a_problem() -> None:
    assert tables.check() == []


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
def test_a_quick_table_is_the_same_byte_for_byte(name: str, tmp_path: Path) -> None:
    tables.run(name, jobs=2, into=tmp_path)
    assert (tmp_path / "table.csv").read_bytes() == (ROOT / "tables" / name / "table.csv").read_bytes()


def test_the_time_of_every_table_is_known() -> None:
    plans = [plan(name, fresh=True) for name in MANIFESTS]
    assert [p.name for p in plans if p.seconds is None] == []
    assert all(p.todo == p.total > 0 for p in plans)
