"""Of a chapter, what is asserted about a table: that, what it needs, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

from tests.support.chapters import about, run_with_shuffled_tables
from tests.support.data import data
from tests.support.warm import command

DATA = data(__file__)


CHAPTER = [
    "import math\nfrom kl_book import tables\nfound = tables.load('value_mse')",
    "other = tables.load('gradient_mse')\nslow = sum(range(10))",
    "rows = []\nrows.append(found.mse.max())\ndef largest():\n    return max(rows)",
    "text = {'largest': 0.0}\ntext['largest'] = largest()",
    "for row in [other]:\n    rows_of_other = len(row)\nrest = [found for found in range(3)]",
    "assert slow == 45\nassert rows_of_other > 1\nassert text['largest'] > math.pi",
]


def sources(table: str) -> list[str]:
    return [ast.unparse(node) for node in about(CHAPTER, table)]


def test_only_what_depends_on_the_table_is_asserted() -> None:
    asserts = [line for line in sources("value_mse") if line.startswith("assert")]
    assert asserts == ["assert text['largest'] > math.pi"]
    assert [line for line in sources("gradient_mse") if "assert" in line] == ["assert rows_of_other > 1"]
    assert sources("no_table") == []


def test_everything_that_an_assert_needs_is_there_and_in_order() -> None:
    assert [line.splitlines()[0] for line in sources("value_mse")] == [
        "import math",
        "from kl_book import tables",
        "found = tables.load('value_mse')",
        "rows = []",
        "rows.append(found.mse.max())",
        "def largest():",
        "text = {'largest': 0.0}",
        "text['largest'] = largest()",
        "assert text['largest'] > math.pi",
    ]


@pytest.mark.parametrize(("last", "status"), DATA["what_the_status_says"])
def test_what_the_status_says(last: str, status: int, tmp_path: Path, root: Path) -> None:
    from kl_book import tables

    honest = float(tables.load("value_mse").mse[0])
    cells = [
        f"honest = {honest!r}",
        "from kl_book import tables",
        "found = tables.load('value_mse')",
    ]
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(cell) for cell in [*cells, last]]
    path = root / "_build" / f"{tmp_path.name}.ipynb"  # below the root, where the tables are
    path.parent.mkdir(exist_ok=True)
    try:
        path.write_text(nbformat.writes(book), encoding="utf-8")
        assert run_with_shuffled_tables(command(), path, "value_mse").returncode == status
    finally:
        path.unlink(missing_ok=True)
