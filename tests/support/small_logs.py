"""Small logs from their columns, written as texts: "0.05 x 40, 0.9, 0.05 x 10", or "0 to 1 x 11"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kl_companion.monitor.logs import Log


def series(text: str | float) -> list[float]:
    """Numbers of a column: ``a x n`` repeats, ``a to b x n`` goes from one to the other."""
    numbers: list[float] = []
    for part in str(text).split(","):
        value, _, count = part.partition(" x ")
        first, _, last = value.partition(" to ")
        rows = int(count or 1)
        a, b = float(first), float(last or first)
        numbers += [a if rows == 1 else a + (b - a) * i / (rows - 1) for i in range(rows)]
    return numbers


def small_log(
    columns: Mapping[str, str | float], config: Mapping[str, Any] | None = None, first: int = 1
) -> Log:
    """A log of columns of one length; its steps begin at `first`."""
    known = {key: series(text) for key, text in columns.items()}
    (rows,) = {len(column) for column in known.values()}
    return Log("a small log", [float(first + i) for i in range(rows)], known, dict(config or {}))
