"""A table is confirmed by making points again: equal rows are noted, others are named and change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kl_book import tables
from kl_book.tables import provenance
from kl_book.tables.confirmation import differences
from kl_book.tables.rows import Column
from tests.support.data import data

DATA = data(__file__)
COLUMNS = (Column("a", "int"), Column("x", "float"), Column("word", "str"))
TABLE = [{"a": 1, "x": 2.0, "word": "one"}, {"a": 2, "x": 4.0, "word": "two"}]


@pytest.fixture
def made(project: Path, quick: list) -> Path:
    tables.run("toy", progress=lambda line: None)
    return project / "tables/toy"


def record(made: Path) -> dict:
    return json.loads((made / "provenance.json").read_text())


def older(made: Path) -> None:
    """The provenance as code left it that has changed since."""
    old = record(made)
    old["package_files"]["kl_companion/ops.py"] = "0" * 16
    (made / "provenance.json").write_text(json.dumps(old))


def test_points_that_are_the_same_clear_the_drift(made: Path) -> None:
    before = record(made)
    older(made)
    assert tables.drift("toy") == ["kl_companion/ops.py"]
    (problem,) = tables.check("toy")
    assert "older than kl_companion/ops.py" in problem
    said: list[str] = []
    assert tables.confirm("toy", progress=said.append) == 4
    assert said[-1].startswith("toy [4/4] ")
    assert (tables.drift("toy"), tables.check("toy")) == ([], [])
    after = record(made)
    assert after["package_files"] == before["package_files"]
    assert (after["start"], after["commit"]) == (before["start"], before["commit"])  # of the run that made it
    assert after["confirmed"]["points"] == 4


def test_one_point_is_made_however_short_the_time(made: Path) -> None:
    assert tables.confirm("toy", seconds=0.0) == 1
    assert record(made)["confirmed"]["points"] == 1


def test_other_numbers_are_named_and_nothing_is_noted(made: Path) -> None:
    older(made)
    before = (made / "provenance.json").read_text()
    table = (made / "table.csv").read_text()
    (made / "table.csv").write_text(table.replace("0.667", "0.668"))
    with pytest.raises(tables.TableError, match=r"toy, point .* 0.668 in the table.*Make the table again: "):
        tables.confirm("toy")
    assert (made / "provenance.json").read_text() == before


def test_a_table_that_was_never_made_and_one_of_timings(
    project: Path, edit: Callable[[str, str, str], None]
) -> None:
    with pytest.raises(FileNotFoundError, match="Make it: python -m kl_book table run toy"):
        tables.confirm("toy")
    edit("tables/toy/manifest.yml", "deterministic: true", "deterministic: false")
    with pytest.raises(ValueError, match="'toy' is not deterministic"):
        tables.confirm("toy")


@pytest.mark.parametrize(("row", "within", "found"), DATA["cells"])
def test_cells_that_differ(row: dict, within: float, found: str) -> None:
    assert differences([row], TABLE, COLUMNS, ["a"], within) == ([found] if found else [])


def test_a_tolerance_is_for_another_processor_alone(
    made: Path, edit: Callable[[str, str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (made / "table.csv").read_text()
    (made / "table.csv").write_text(table.replace("0.667", "0.668"))
    tolerance = "deterministic: true\ntolerance: {within: 1.0e-3, because: rounding}"
    edit("tables/toy/manifest.yml", "deterministic: true", tolerance)
    with pytest.raises(tables.TableError, match=r"0\.668 in the table"):
        tables.confirm("toy")
    monkeypatch.setattr(provenance, "processor_name", lambda: "another")
    assert tables.confirm("toy") == 4
