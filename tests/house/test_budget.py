"""The house stays as large as its budget says: lines of Python by room, and code of the median chapter."""

from __future__ import annotations

import copy
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import house
from kl_book.tables.closure import notebook_code
from tests.support.layout import ROOT

BUDGET: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("budget.yml").read_text(encoding="utf-8")
)
CHAPTERS = "code of the median chapter"


def measured() -> dict[str, int]:
    """Lines of every room, and of the median chapter."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("part*/*.ipynb"))
    codes = (sum(1 for line in notebook_code(text).splitlines() if line.strip()) for text in texts)
    return {room: size for room, (_, size) in house.rooms(ROOT).items()} | {
        CHAPTERS: int(statistics.median(codes))
    }


def over(budget: dict[str, dict[str, Any]], sizes: dict[str, int]) -> list[str]:
    """What is larger than its budget, and rooms that have none or several, a line each."""
    held = [room for entry in budget.values() for room in entry["rooms"]]
    lines = [
        f"{room} has {held.count(room)} budgets, expected one" for room in sizes if held.count(room) != 1
    ]
    lines += [f"{room} has a budget and does not exist" for room in held if room not in sizes]
    for name, entry in budget.items():
        size = sum(sizes.get(room, 0) for room in entry["rooms"])
        if size > entry["lines"]:
            lines.append(
                f"{name}: {size} lines, {entry['lines']} allowed: shrink it, or say which user needs it"
            )
    return lines


def test_every_room_is_within_its_budget() -> None:
    assert over(BUDGET, measured()) == []


def test_goals_are_below_budgets_or_reached() -> None:
    assert [name for name, entry in BUDGET.items() if set(entry) != {"rooms", "lines", "goal"}] == []
    assert [name for name, entry in BUDGET.items() if entry["goal"] > entry["lines"]] == []


@pytest.mark.parametrize("room", ["auditing", "tests", "kl_book/ledger", CHAPTERS])
def test_a_line_too_many_is_found(room: str) -> None:
    sizes = measured()
    (name,) = (name for name, entry in BUDGET.items() if room in entry["rooms"])
    more = BUDGET[name]["lines"] - sum(sizes[each] for each in BUDGET[name]["rooms"]) + 1
    (line,) = over(BUDGET, sizes | {room: sizes[room] + more})
    assert line.startswith(f"{name}: ")


def test_a_new_room_wants_a_budget_and_a_gone_one_none() -> None:
    assert over(BUDGET, measured() | {"attic": 7}) == ["attic has 0 budgets, expected one"]
    budget = copy.deepcopy(BUDGET)
    next(iter(budget.values()))["rooms"].append("cellar")
    assert over(budget, measured()) == ["cellar has a budget and does not exist"]
