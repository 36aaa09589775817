"""What emapg2026 prints of its experiments (`printed_results.yml`), and its scores as numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kl_book.ledger.claims.ground.errors import excess

_DATA: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
SETS, MATH_COLUMNS = _DATA["sets"], _DATA["math columns"]
GENERAL, MULTI_HOP = tuple(SETS[:3]), tuple(SETS[3:7])
GRPO, ANCHOR, FORWARD, REVERSE = "GRPO", "EMA-anchor", "plus-Topk-Forward", "plus-Topk-Reverse"
GAIN, INSTRUCT = "Improvement", "EMA-PG-Rev"

TABLE_2, TABLE_3, TABLE_4 = (_DATA[f"table {number}"] for number in (2, 3, 4))
TABLES = {2: (TABLE_2, SETS), 3: (TABLE_3, MATH_COLUMNS), 4: (TABLE_4, SETS)}
MATH_SETS = tuple(x for x in TABLE_3 if x != "Average")
AIME = ("AIME 2024", "AIME 2025")
MATH_SETS_OF_THE_TEXT, MATH_SETS_OF_THE_CAPTION, SEARCH_SETS_OF_THE_TEXT = (
    _DATA[f"{kind} sets of the {place}"]
    for kind, place in (("math", "text"), ("math", "caption"), ("search", "text"))
)
AVERAGE_GAIN, PERIOD = _DATA["average gain"], _DATA["period"]
VOCABULARY, VOCABULARIES = _DATA["vocabulary"], _DATA["vocabularies"]
HALF_A_UNIT = 0.0005  # half a unit in the third decimal, to which scores are printed


class Quote(NamedTuple):
    """A percentage in the text, and the cell of the table that it is taken from."""

    percent: str
    table: int
    row: str
    column: str


ABSTRACT, SECTION_6 = ([Quote(*cell) for cell in _DATA[place]] for place in ("abstract", "section 6"))


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


def _fits(score: str, questions: int) -> bool:
    """Whether a whole number of right answers to so many questions rounds to the printed score."""
    return excess(round(float(score) * questions) / questions, score) <= 1e-12


def answers_per_aime_set() -> int:
    """Answers per AIME set: the least multiple of its 30 problems that every printed score fits."""
    aime = [score for s in AIME for score in list(printed_cells(3, s).values())[:3]]
    return 30 * next(n for n in range(1, 100) if all(_fits(x, 30 * n) for x in aime))
