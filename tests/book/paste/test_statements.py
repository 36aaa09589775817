"""Of earlier cells a cell gets what it needs, and all their imports."""

from __future__ import annotations

from kl_book.paste.statements import needed

EARLIER = [
    "import math, os.path as paths\nfrom torch import (\n    cat,\n    stack as pile,\n)\nbeta = 0.1",
    "def scaled(x):\n    return beta * x\n\nplot = scaled(2)",
    "beta = 0.2\nrows = []\nrows.append(scaled(3))\nunused = open('no such file')",
    "beta = 0.3\nresult = beta * 10\ntext = {}\ntext['a'] = result",
]
IMPORTS = [
    "import math",
    "import os.path as paths",
    "from torch import cat",
    "from torch import stack as pile",
]


def code(cell: str) -> list[str]:
    """Lines that the cell needs, without the imports, which come first."""
    lines = needed(EARLIER, cell).splitlines()
    assert lines[: len(IMPORTS)] == IMPORTS
    return lines[len(IMPORTS) :]


def test_imports_alone_where_nothing_else_is_needed() -> None:
    assert code("print(math.pi)") == []


def test_the_last_value_of_a_name_and_what_made_it() -> None:
    assert code("print(result)") == ["beta = 0.3", "result = beta * 10"]
    assert code("print(text)") == ["beta = 0.3", "result = beta * 10", "text = {}", "text['a'] = result"]


def test_a_function_reads_its_names_when_it_is_called() -> None:
    assert code("print(scaled(1))") == ["def scaled(x):", "    return beta * x", "beta = 0.3"]
    assert "rows.append(scaled(3))" in code("print(rows)")


def test_what_the_cell_itself_binds_is_not_needed() -> None:
    assert code("beta = 0.5\nfor row in range(3):\n    print(row, beta)") == []
    assert code("print(beta)\nbeta = 0.5") == ["beta = 0.3"]
