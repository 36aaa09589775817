"""A table that needs a real model is not begun without it, and a page that loads it needs nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kl_book import tables
from kl_book.__main__ import main
from kl_book.tables.manifest import read_manifest
from kl_book.tables.needs import lacking
from kl_companion.llm import packaged

Edit = Callable[[str, str, str], None]
Runs = list[dict[str, Any]]
FILE = "tables/toy/manifest.yml"
LINE = f"table 'toy' is not made: the model 'smollm2' needs nothing-here: {packaged.HOW}"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that lacks the model."""
    model = packaged.PACKAGED["smollm2"]._replace(distribution="nothing-here", module="nothing_here")
    monkeypatch.setitem(packaged.PACKAGED, "smollm2", model)
    monkeypatch.setattr(packaged, "READER", "json")


@pytest.mark.usefixtures("without")
def test_it_is_said_in_one_line_before_anything_runs(
    project: Path, edit: Edit, quick: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(FILE, "cost:", "needs: smollm2\ncost:")
    with pytest.raises(ImportError) as raised:
        tables.run("toy")
    assert str(raised.value) == LINE
    assert main(["table", "run", "toy"]) == 2
    assert capsys.readouterr().err == f"kl_book: {LINE}\n"
    assert quick == []
    assert not (project / "_build").exists()
    assert main(["table", "run", "--all"]) == 0
    assert capsys.readouterr().err == f"  {LINE}\n"
    assert quick == []


@pytest.mark.usefixtures("without")
def test_a_committed_table_is_loaded_and_checked_without_it(project: Path, edit: Edit, quick: Runs) -> None:
    tables.run("toy", progress=lambda line: None)
    edit(FILE, "cost:", "needs: smollm2\ncost:")
    assert len(tables.load("toy")) == 8
    assert tables.check("toy") == []


def test_nothing_is_lacking_where_all_is_there(
    project: Path, edit: Edit, quick: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lacking(read_manifest("toy")) is None
    edit(FILE, "cost:", "needs: smollm2\ncost:")
    monkeypatch.setattr("kl_book.tables.needs.missing", lambda name: None)
    assert len(tables.run("toy", progress=lambda line: None)) == 8


def test_an_unknown_model_is_refused_by_who_runs_and_who_checks(
    project: Path, edit: Edit, quick: Runs
) -> None:
    edit(FILE, "cost:", "needs: smollm3\ncost:")
    message = "needs: unknown packaged model 'smollm3'. Did you mean 'smollm2'"
    with pytest.raises(ValueError, match=message):
        tables.run("toy")
    (problem,) = tables.check("toy")
    assert message in problem
    assert quick == []
