"""Rows in, bytes out: types, gaps, rounding and order."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from kl_book.tables.rows import Column, parse, render, write_rows
from tests.support.data import data

DATA = data(__file__)
NAME, COUNT, RATE = Column("name", "str"), Column("count", "int"), Column("rate", "float", digits=2)


def test_write_rows_keeps_every_digit_and_leaves_no_other_file(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    write_rows(
        out, [{"name": "a,b", "rate": 0.1 + 0.2, "good": np.bool_(True), "n": np.int64(3), "gap": None}]
    )
    assert out.read_bytes() == b'name,rate,good,n,gap\n"a,b",0.30000000000000004,True,3,\n'
    assert list(tmp_path.iterdir()) == [out]


def test_write_rows_takes_a_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"name": ["x", "y"], "rate": [1.0, float("nan")], "count": pd.array([1, None], "Int64")}
    )
    write_rows(str(tmp_path / "rows.csv"), frame)
    assert (tmp_path / "rows.csv").read_text() == "name,rate,count\nx,1.0,1\ny,,\n"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there are no rows"),
        ([{"a": 1}, {"b": 1}], r"row 1 is \{'b': 1\}, expected values for \['a'\]"),
        ([{"a": torch.tensor(1.0)}], "a in row 0 is a torch.Tensor, expected str, bool, int or float"),
        (pd.DataFrame({"a": [1], "b": [2]}).set_index("a"), r"the index \['a'\] of the rows would be lost"),
        ([3], "row 0 is 3, expected values for"),
    ],
)
def test_write_rows_refuses_before_it_writes(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_rows(tmp_path / "rows.csv", rows)
    assert not list(tmp_path.iterdir())


def test_write_rows_without_a_place_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(None, [{"a": 1}])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.00"),
        (-0.0, "0.00"),
        (-0.004, "0.00"),
        (-0.006, "-0.01"),
        (2.675, "2.67"),
        (float("inf"), "inf"),
    ],
)
def test_floats_have_fixed_decimals_and_no_negative_zero(value: float, text: str) -> None:
    assert render([{"name": "a", "rate": value}], [NAME, RATE], ["name"], {}) == f"name,rate\na,{text}\n"


def test_without_digits_every_digit_stays() -> None:
    column = Column("rate", "float")
    assert render([{"rate": 1 / 3}], [column], ["rate"], {}) == "rate\n0.3333333333333333\n"
    assert render([{"rate": -0.0}], [column], ["rate"], {}) == "rate\n0.0\n"


def test_rows_follow_the_key_and_the_grid() -> None:
    rows: list[Any] = [{"name": n, "count": c} for n, c in [("a", 10), ("b", 2), ("a", 9), ("b", 1)]]
    by_value = render(rows, [NAME, COUNT], ["name", "count"], {})
    by_grid = render(rows, [NAME, COUNT], ["name", "count"], {"name": ["b", "a"]})
    assert by_value.split()[1:] == ["a,9", "a,10", "b,1", "b,2"]
    assert by_grid.split()[1:] == ["b,1", "b,2", "a,9", "a,10"]


@pytest.mark.parametrize(("text", "message"), DATA["refused"])
def test_parse_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text, [NAME, COUNT])


def test_gaps_where_they_are_allowed() -> None:
    columns = [NAME, Column("rate", "float", 1, True), Column("good", "bool", None, True)]
    text = "name,rate,good\na,,\nb,1.5,True\n"
    rows = parse(text, columns)
    assert rows[0] == {"name": "a", "rate": None, "good": None}
    assert render(rows, columns, ["name"], {}) == text


def test_values_of_the_grid_are_added_and_must_agree() -> None:
    columns = [Column("beta", "float"), COUNT]
    assert parse("count\n1\n", columns, {"beta": 1, "other": 2}) == [{"beta": 1.0, "count": 1}]
    assert parse("beta,count\n1.0,1\n", columns, {"beta": 1}) == [{"beta": 1.0, "count": 1}]
