"""The files of a run: whole rows, an earlier run kept aside, and going on after a cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from kl_companion.monitor import Observation, folder
from kl_companion.monitor.observation import COLUMNS


def steps(path: Path) -> list[str]:
    return [line.split(",")[0] for line in path.read_text().splitlines()[1:]]


def written(place: Path, *numbers: int) -> None:
    for step in numbers:
        folder.append(place, Observation(step=step, answers=1, tokens=2), [])


def test_an_earlier_run_is_kept_aside(tmp_path: Path) -> None:
    for first in (1, 3, 5):
        folder.start(tmp_path, {"format": first})
        written(tmp_path, first, first + 1)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(
        f"{stem}{number}.{end}"
        for stem, end in (("kl_monitor", "csv"), ("kl_monitor", "json"), ("kl_monitor_tokens", "jsonl"))
        for number in ("", "-1", "-2")
    )
    assert steps(tmp_path / "kl_monitor.csv") == ["5", "6"]
    assert steps(tmp_path / "kl_monitor-1.csv") == ["1", "2"]
    assert steps(tmp_path / "kl_monitor-2.csv") == ["3", "4"]


def test_a_cut_line_is_taken_away_before_it_goes_on(tmp_path: Path) -> None:
    folder.start(tmp_path, {})
    written(tmp_path, 1, 2)
    table, tokens = tmp_path / "kl_monitor.csv", tmp_path / "kl_monitor_tokens.jsonl"
    table.write_text(table.read_text() + "3,1")
    tokens.write_text(tokens.read_text() + '{"step"')
    folder.start(tmp_path, {}, resume=True)
    written(tmp_path, 3)
    assert steps(table) == ["1", "2", "3"]
    assert [len(line.split(",")) for line in table.read_text().splitlines()] == [len(COLUMNS)] * 4
    assert len(tokens.read_text().splitlines()) == 3


def test_resuming_where_there_is_nothing_begins(tmp_path: Path) -> None:
    folder.start(tmp_path / "new", {}, resume=True)
    written(tmp_path / "new", 7)
    assert steps(tmp_path / "new/kl_monitor.csv") == ["7"]


def test_a_table_of_other_columns_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "kl_monitor.csv").write_text("step,kl\n1,2\n")
    with pytest.raises(ValueError, match="has the columns step, kl, expected those of this version"):
        folder.start(tmp_path, {}, resume=True)
    assert (tmp_path / "kl_monitor.csv").read_text() == "step,kl\n1,2\n"
