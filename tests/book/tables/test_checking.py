"""`check` finds each planted defect, and nothing in a good table; `drift` sees changed code alone."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kl_book import tables
from kl_book.__main__ import main
from kl_book.tables import provenance
from kl_book.tables.manifest import read_manifest
from tests.support.data import data

DATA = data(__file__)
Edit = Callable[[str, str, str], None]
AGAIN = "make it again: python -m kl_book table run toy"


@pytest.fixture
def made(project: Path, quick: list[dict[str, Any]]) -> Path:
    """The toy project with its table."""
    tables.run("toy", progress=lambda line: None)
    return project


def test_a_good_table_has_no_problem(made: Path) -> None:
    assert tables.check() == []
    assert tables.check("toy") == []
    assert tables.drift("toy") == []


@pytest.mark.parametrize(("file", "old", "new", "message"), DATA["changes"])
def test_a_planted_change_is_found(made: Path, file: str, old: str, new: str, message: str) -> None:
    path = made / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    problems = tables.check()
    assert len(problems) == 1
    assert re.search(message.format(again=AGAIN), problems[0]), problems


@pytest.mark.parametrize(("old", "new", "message"), DATA["rows"])
def test_a_row_that_breaks_the_schema_is_found(
    made: Path, edit: Edit, old: str, new: str, message: str
) -> None:
    edit("tables/toy/table.csv", old, new)
    problems = tables.check("toy")
    assert len(problems) == 2
    assert message in problems[0]
    assert "the table has changed" in problems[1]


@pytest.mark.parametrize("name", ["table.csv", "provenance.json"])
def test_a_missing_file_is_found(made: Path, name: str) -> None:
    (made / "tables/toy" / name).unlink()
    assert tables.check() == [f"toy: {name} is missing; {AGAIN}"]


def test_a_stray_file_and_a_folder_without_manifest_are_found(made: Path) -> None:
    (made / "tables/toy/table.csv.part").touch()
    (made / "tables/empty").mkdir()
    assert tables.check() == [
        "tables/empty is no table: it has no manifest.yml",
        "toy: table.csv.part does not belong into the folder of a table",
    ]


def test_half_a_gpu_table_is_found(made: Path, edit: Edit) -> None:
    (made / "tables/toy/table.gpu.csv").write_bytes((made / "tables/toy/table.csv").read_bytes())
    assert tables.check() == [f"toy: provenance.gpu.json is missing; {AGAIN} --profile gpu"]


@pytest.mark.parametrize(("cell", "used"), DATA["a_page_uses_a_table_by_loading_it"])
def test_a_page_uses_a_table_by_loading_it(made: Path, toy: dict[str, Any], cell: str, used: bool) -> None:
    (made / "book/page.md").unlink()
    (made / "book/chapter.ipynb").write_text(toy["notebook"](cell))
    assert (tables.check() == []) == used


def test_drift_names_the_changed_code_and_is_no_problem(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = made / "installed"
    real = provenance.PACKAGE_ROOT
    (root / "book/kl_book/tables").mkdir(parents=True)
    (root / "kl_companion").mkdir()
    room = [f"book/kl_book/{name}" for name in ("__init__.py", "tables/__init__.py", "tables/rows.py")]
    for name in (*(f"kl_companion/{name}" for name in ("__init__.py", "files.py", "lazy.py")), *room):
        shutil.copy(real / name, root / name)
    monkeypatch.setattr(provenance, "PACKAGE_ROOT", root)
    assert tables.drift("toy") == []
    rows = root / "book/kl_book/tables/rows.py"
    text = rows.read_text()
    rows.write_text(text.replace('"""Rows of', '"""Some rows of', 1))
    assert rows.read_text() != text
    assert tables.drift("toy") == []
    rows.write_text(text + "\nSIGN = -1\n")
    assert tables.drift("toy") == ["book/kl_book/tables/rows.py"]
    assert tables.check() == []
    init = root / "kl_companion/__init__.py"
    (root / "kl_companion/kernels").mkdir()
    (root / "kl_companion/kernels/__init__.py").touch()
    (root / "kl_companion/kernels/gpu.py").write_text("BLOCK = 2\n")  # no processor that has no GPU runs it
    init.write_text(init.read_text() + "\nfrom kl_companion.kernels import gpu\n")
    assert "kl_companion/kernels/gpu.py" in tables.drift("toy")
    assert tables.check() == []
    (root / "kl_companion/ops.py").write_text("log = 1\n")
    init.write_text(init.read_text() + "\nfrom kl_companion import ops\n")
    assert tables.check() == [
        f"toy: table.csv is older than kl_companion/ops.py; table confirm toy tries it; {AGAIN}"
    ]
    record = json.loads((made / "tables/toy/provenance.json").read_text())
    assert record["digests"]["package"] != provenance.digests(read_manifest("toy"), "cpu")["package"]


def test_drift_needs_a_table(project: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Make it: python -m kl_book table run toy"):
        tables.drift("toy")


def test_the_command_lists_a_table_without_provenance(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "tables/toy/provenance.json").unlink()
    assert main(["table", "check"]) == 1
    assert f"toy: provenance.json is missing; {AGAIN}\n" in capsys.readouterr().out
