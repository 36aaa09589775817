"""The table of speed as it is shown: which number goes where, and what is said where there is none."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from kl_book import speed_tables, tables
from kl_book.speed_goals import CPU, GPU, OURS, MeasuredAt

COLUMNS = ("milliseconds", "times_faster", "of_floor", "extra_megabytes", "extra_of_logits", "gradient_error")


def row(
    variant: str, dtype: str = "float32", work: str = "reverse_kl", at: MeasuredAt = CPU, **cells: float
) -> dict[str, Any]:
    named = {"variant": variant, "dtype": dtype, "work": work, "device": "Abacus", "figure": None}
    return dict.fromkeys(COLUMNS) | at._asdict() | named | cells


def good() -> list[dict[str, Any]]:
    found = []
    for dtype, times in (("float32", (60.0, 25.0, 10.0)), ("bfloat16", (90.0, 32.0, 8.0))):
        names = ("naive", "torch.compile", OURS)
        found += [row(v, dtype, milliseconds=t) for v, t in zip(names, times, strict=True)]
    for x, memory in zip(found, (5.0, 3.0, 1.04), strict=False):
        x["extra_of_logits"] = memory
    return [*found, row("ours, in place", extra_of_logits=0.004)]


def test_the_sentences_of_the_readme() -> None:
    first, second = speed_tables.sentences(good())
    assert "Abacus" in first
    assert "6.0 times as fast as the usual formula and 2.5 times as fast as `torch.compile`" in first
    assert first.endswith("in float32, 11.2 and 4.0 times in bfloat16.")
    assert "needs 1.04 times their memory, for the gradient, and in place 0.4 % of it;" in second
    assert second.endswith("needs 5.0 times.")


@pytest.mark.parametrize("number", range(7))
def test_no_sentence_without_its_numbers(number: int) -> None:
    rows = good()
    del rows[number]
    with pytest.raises(ValueError, match="lacks numbers"):
        speed_tables.sentences(rows)


def test_speedups_and_costs() -> None:
    warm = CPU._replace(allocator="warm")
    rows = [
        row("naive", times_faster=1.0, extra_of_logits=5.0, gradient_error=1e-5),
        row("ours", times_faster=6.0, extra_of_logits=1.0),
        row("ours", "bfloat16", at=warm, times_faster=3.0),
        row("ours", "bfloat16", at=GPU, times_faster=9.0),
    ]
    speed = speed_tables.speedups(rows)
    assert list(speed.columns) == [(d, a) for d in ("float32", "bfloat16") for a in ("default", "warm")]
    assert speed.loc["usual formula", ("float32", "default")] == 1.0
    assert speed.loc["ours", ("float32", "default")] == 6.0
    assert speed.loc["ours", ("bfloat16", "warm")] == 3.0
    assert speed.notna().sum().sum() == 3
    assert speed_tables.speedups(rows, GPU).loc["ours", ("bfloat16", "default")] == 9.0
    cost = speed_tables.costs(rows)
    assert cost.loc["usual formula", ("float32", "memory")] == 5.0
    assert cost.loc["usual formula", ("float32", "error")] == 1e-5
    assert cost.notna().sum().sum() == 3
    assert "memory roof" in speed.index
    assert "memory roof" not in cost.index


def test_training_steps() -> None:
    rows = [
        {"work": "training_step", "variant": name, "milliseconds": 10.0 * k, "times_faster": 1 / k}
        | {"extra_megabytes": 5.0}
        for k, name in enumerate(("K2", "exact KL"), 1)
    ]
    found = speed_tables.training_steps([{"work": "logp"}, *rows])
    assert found.loc["exact KL"].tolist() == [20.0, 2.0, 5.0]
    assert list(found.index) == ["K2", "exact KL"]


def test_milliseconds_on_a_gpu_and_their_share_of_a_copy() -> None:
    empty = speed_tables.on_gpu([])
    assert set(empty.to_numpy().ravel()) == {"not measured"}
    rows = [row("ours", "bfloat16", at=GPU, milliseconds=2.0), row("copy", work="machine")]
    rows[1]["figure"] = 4800.0
    shown = speed_tables.on_gpu(rows)
    assert shown.loc["ours"].tolist() == ["2", "0.778"]
    assert shown.loc["usual formula"].tolist() == ["not measured"] * 2


def test_the_rows_of_a_table_have_none_for_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"variant": ["ours"], "milliseconds": [math.nan], "tokens": [256]})

    def load(name: str, profile: str) -> pd.DataFrame:
        if profile == "gpu" or name != "performance":
            raise FileNotFoundError(name)
        return frame

    monkeypatch.setattr(tables, "load", load, raising=False)
    assert speed_tables.measured() == [{"variant": "ours", "milliseconds": None, "tokens": 256}]
    assert speed_tables.measured("gpu") == []
    monkeypatch.setattr(tables, "load", lambda name, profile: load("", profile), raising=False)
    with pytest.raises(FileNotFoundError):
        speed_tables.measured()
