"""The printed scores of emapg2026 as numbers: rows of tables 2 to 4, means and relative gains."""

from __future__ import annotations

from collections.abc import Iterable

from kl_book.ledger.claims.ground.errors import excess
from kl_book.ledger.claims.ground.printed_results import MATH_COLUMNS, SETS, TABLE_2, TABLE_3, TABLE_4

TABLES = {2: (TABLE_2, SETS), 3: (TABLE_3, MATH_COLUMNS), 4: (TABLE_4, SETS)}


MATH_SETS = tuple(x for x in TABLE_3 if x != "Average")


AIME = ("AIME 2024", "AIME 2025")


HALF_A_UNIT = 0.0005  # half a unit in the third decimal, to which scores are printed


def printed_cells(table: int, row: str) -> dict[str, str]:
    """A row as it is printed, by column."""
    rows, columns = TABLES[table]
    return dict(zip(columns, rows[row].split(), strict=True))


def scores(table: int, row: str) -> dict[str, float]:
    """The same as numbers."""
    return {column: float(x) for column, x in printed_cells(table, row).items()}


def mean_score(values: Iterable[float]) -> float:
    """Arithmetic mean."""
    x = list(values)
    return sum(x) / len(x)


def percent_above(ours: float, theirs: float) -> float:
    """Percent by which one score is above another, as tables 2 and 4 have it."""
    return 100 * (ours / theirs - 1)


def three(row: str) -> list[str]:
    """The three scores of a row of table 3, as they are printed."""
    return list(printed_cells(3, row).values())[:3]


def fits(score: str, questions: int) -> bool:
    """Whether a whole number of right answers to so many questions rounds to the printed score."""
    return excess(round(float(score) * questions) / questions, score) <= 1e-12


def answers_per_aime_set() -> int:
    """Answers per AIME set: the least multiple of its 30 problems that every printed score fits."""
    return 30 * next(n for n in range(1, 100) if all(fits(x, 30 * n) for s in AIME for x in three(s)))
