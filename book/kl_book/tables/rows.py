"""Rows of a result table: how a notebook hands them over, and the one way they are written to a file.

A file is a pure function of the rows: floats with a fixed number of decimals and no negative zero, rows
sorted by the key, a line feed at the end of each line. So the same numbers always give the same bytes, and a
table can be checked by reading it and writing it again.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kl_companion.files import write_atomically

Cell = str | int | float | bool | None
Row = dict[str, Cell]


class Column(NamedTuple):
    """A column as the manifest declares it: `digits` are decimals (None keeps all), `missing` allows gaps."""

    name: str
    type: Literal["str", "int", "float", "bool"]
    digits: int | None = None
    missing: bool = False


def write_rows(out: str | os.PathLike[str] | None, rows: Any) -> None:
    """Hand the rows of one run of a notebook over to the runner of its table.

    Args:
        out: the notebook's parameter `out`. None (its default) does nothing, so that reading, testing or
            rendering the notebook leaves no trace.
        rows: a pandas DataFrame, or a list of dicts with the same keys. Values are str, bool, int or float
            (numpy's count, tensors do not: use `.item()`); NaN and None are gaps.

    Raises:
        ValueError: no rows, rows with different keys, a named index, or a value of another type.
    """
    index = [name for name in getattr(getattr(rows, "index", None), "names", []) if name is not None]
    if index:
        raise ValueError(f"the index {index} of the rows would be lost: write rows.reset_index()")
    if not hasattr(rows, "to_dict") and (not isinstance(rows, Iterable) or isinstance(rows, str | Mapping)):
        raise ValueError(f"rows is a {type(rows).__name__}, expected a DataFrame or a list of dicts")
    records = rows.to_dict("records") if hasattr(rows, "to_dict") else list(rows)
    if not records:
        raise ValueError("there are no rows, expected at least one")
    header = [str(name) for name in records[0]] if isinstance(records[0], Mapping) else ["names of columns"]
    for number, record in enumerate(records):
        if not isinstance(record, Mapping) or [str(name) for name in record] != header:
            raise ValueError(f"row {number} is {record!r}, expected values for {header} in this order")
    cells = [[_text(_plain(row[name], number, name)) for name in row] for number, row in enumerate(records)]
    if out is not None:
        write_atomically(Path(out), _csv([header, *cells]))


def _plain(value: Any, number: int, name: str) -> Cell:
    """A cell as one of Python's own types."""
    if value is None or isinstance(value, str):
        return value
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return None if math.isnan(value) else float(value)
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    kind = f"{type(value).__module__}.{type(value).__name__}"
    raise ValueError(f"{name} in row {number} is a {kind}, expected str, bool, int or float")


def _text(value: Cell, digits: int | None = None) -> str:
    """A cell as it is written: no `-0`, a gap is the empty text."""
    if value is None:
        return ""
    if isinstance(value, float):
        text = repr(value) if digits is None else f"{value:.{digits}f}"
        return text.removeprefix("-") if float(text) == 0 else text
    return str(value)


def _csv(lines: Iterable[Sequence[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def parse(text: str, columns: Sequence[Column], extra: Mapping[str, Cell] | None = None) -> list[Row]:
    """Read rows from CSV text and check them against the columns.

    Args:
        text: CSV with a header.
        columns: what is wanted.
        extra: values (of the grid) for columns that the text lacks; where it has them, they must agree.

    Returns:
        One dict per row, keyed by column name in the order of `columns`; None is a gap.

    Raises:
        ValueError: a column too many or too few, a cell of the wrong type, a gap where none is allowed.
    """
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[]]
    except csv.Error as error:
        raise ValueError(f"this is not CSV: {error}") from None
    header, extra = lines[0], dict(extra or {})
    wanted = [column.name for column in columns]
    given = header + [name for name in extra if name in wanted and name not in header]
    if sorted(given) != sorted(wanted):
        raise ValueError(f"the columns are {header}, expected {wanted} as the manifest says")
    if len(lines) < 2:
        raise ValueError("there are no rows, expected at least one")
    rows = []
    for number, line in enumerate(lines[1:]):
        if len(line) != len(header):
            raise ValueError(f"row {number} has {len(line)} cells, expected {len(header)}")
        cells = dict(zip(header, line, strict=True))
        row = {}
        for column in columns:
            of_grid = _text(extra[column.name]) if column.name in extra else None
            row[column.name] = value = _value(cells.get(column.name, of_grid), column, number)
            if of_grid is not None and value != _value(of_grid, column, number):
                got = f"{column.name} in row {number} is {value!r}"
                raise ValueError(f"{got}, expected {of_grid} as in the grid")
        rows.append(row)
    return rows


def _value(text: str | None, column: Column, number: int) -> Cell:
    if not text:
        if column.missing:
            return None
        raise ValueError(f"{column.name} in row {number} is a gap, allowed by `missing: true` alone")
    try:
        if column.type == "bool":
            return {"True": True, "False": False}[text]
        value = {"str": str, "int": int, "float": float}[column.type](text)
    except (ValueError, KeyError):
        raise ValueError(f"{column.name} in row {number} is {text!r}, expected {column.type}") from None
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{column.name} in row {number} is NaN, expected a number or a gap")
    return value


def render(
    rows: Iterable[Row], columns: Sequence[Column], key: Sequence[str], grid: Mapping[str, Sequence[Cell]]
) -> str:
    """The text of a table.

    Rows are sorted by the key; a column of the key that is in the grid follows the grid's order.

    Raises:
        ValueError: two rows have the same key.
    """
    ranks = {
        column.name: [_value(_text(value), column, 0) for value in grid[column.name]]
        for column in columns
        if column.name in key and column.name in grid
    }

    def rank(name: str, value: Cell) -> int:
        # a value that is not in the grid (an older table under check) comes last
        known = ranks.get(name, [])
        return known.index(value) if value in known else len(known)

    def place(row: Row) -> list[tuple[int, Any]]:
        return [(rank(name, row[name]), row[name]) for name in key]

    ordered = sorted(rows, key=place)
    seen: set[tuple[Cell, ...]] = set()
    for row in ordered:
        this = tuple(row[name] for name in key)
        if this in seen:
            raise ValueError(f"two rows have the key {dict(zip(key, this, strict=True))}, expected one")
        seen.add(this)
    table = [[_text(row[column.name], column.digits) for column in columns] for row in ordered]
    return _csv([[column.name for column in columns], *table])
