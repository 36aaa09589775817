"""Accuracies, panels and clip ranges that zhang2025design prints, read from `printed_accuracies.yml`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import yaml

_PRINTED = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
BENCHMARKS: dict[int, list[str]] = _PRINTED["benchmarks"]
TABLES: dict[int, dict[str, str]] = _PRINTED["tables"]
PLACES: dict[int, list[tuple[str, str, float | None, list[str]]]] = _PRINTED["places"]
PANELS: dict[str, str] = _PRINTED["panels"]
PANELS_OF_THE_TEXT: dict[str, str] = _PRINTED["panels of the text"]
GRPO_CLIP: dict[str, tuple[float, float]] = {k: tuple(v) for k, v in _PRINTED["grpo clip"].items()}
FIGURE_2: dict[str, dict[str, int]] = _PRINTED["figure 2"]
FIGURE_2_TITLES: dict[str, int] = _PRINTED["titles of figure 2"]


class Score(NamedTuple):
    """The two accuracies of one method on one benchmark."""

    method: str
    benchmark: str
    last: float
    best: float


def scores(*tables: int) -> list[Score]:
    """Return every pair of numbers of the tables, all by default."""
    pairs = []
    for table in tables or TABLES:
        for method, printed in TABLES[table].items():
            accuracies = [float(x) for x in printed.split()]
            both = zip(BENCHMARKS[table], accuracies[::2], accuracies[1::2], strict=True)
            pairs += [Score(method, name, last, best) for name, last, best in both]
    return pairs


def column(table: int, benchmark: str, which: str) -> dict[str, float]:
    """Return {method: accuracy} of one column of a table; ``which`` is ``"last"`` or ``"best"``."""
    return {s.method: getattr(s, which) for s in scores(table) if s.benchmark == benchmark}


def order(table: int, benchmark: str, which: str) -> list[str]:
    """Return the methods of a column, that with the largest number first."""
    accuracies = column(table, benchmark, which)
    return sorted(accuracies, key=lambda method: -accuracies[method])


def columns(*tables: int) -> list[tuple[int, str, str]]:
    """Return (table, benchmark, last or best) of every column."""
    return [(t, b, which) for t in tables for b in BENCHMARKS[t] for which in ("last", "best")]
