"""Folders of monitored runs, written by the format and not by the monitor: healthy, or with one trouble."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

SETTINGS, TROUBLES = yaml.safe_load_all(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
Row = dict[str, Any]
WORDS = (" maybe", " therefore", "\n", " however", "So", " the", " 7", " answer")


def healthy(seed: int = 0, count: int = 40) -> list[Row]:
    """Observations of a run in which all is normal."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for i in range(count):
        kl = 0.03 * (1 - math.exp(-(i + 1) / 12)) + 0.0004 * draw.gauss(0, 1)
        kl = max(kl, 0.0006)
        error, half = 0.05 * kl, 0.12 * kl
        noise = error * draw.gauss(0, 1)
        reward = 0.25 + 0.4 * (1 - math.exp(-(i + 1) / 15)) + 0.02 * draw.gauss(0, 1)
        rows.append(
            {
                "step": 10 * (i + 1),
                "answers": 64,
                "tokens": 8192 + draw.randrange(900),
                "kl": kl,
                "kl_low": kl - half,
                "kl_high": kl + half,
                "forward_kl": 1.1 * kl,
                "forward_kl_low": 0.95 * kl,
                "forward_kl_high": 1.25 * kl,
                "kl_of_answers": 130 * kl,
                "entropy": 0.62 - 0.1 * i / count + 0.01 * draw.gauss(0, 1),
                "logged": kl + noise,
                "logged_expected": kl,
                "logged_bias": 0.0,
                "logged_noise": noise,
                "logged_error": error,
                "k1_error": 3 * error,
                "k2_error": 1.2 * error,
                "k3_error": error,
                "k2_bias": 0.04 * kl,
                "dead_zone": "",
                "largest_log_ratio": 1.5 + draw.random(),
                "effective_beta": 0.017 + 0.001 * draw.gauss(0, 1),
                "equal_groups": 0.2,
                "length_pull_kl": 0.001,
                "length_pull_reward": 0.02,
                "mismatch": 0.008,
                "mismatch_kl": 0.0001,
                "mismatch_temperature": 0.0,
                "mismatch_truncation": 0.0,
                "mismatch_rounding": 0.008,
                "engine_temperature": 1.0,
                "engine_kept": 1.0,
                "reward": reward,
                "loss": 0.001,
                "seconds": 0.4,
            }
        )
    return rows


COLUMNS = list(healthy(count=1)[0])


def tokens_of(row: Row, largest: float | None = None) -> Row:
    """The tokens of an observation, by the largest log-ratio."""
    top = float(largest if largest is not None else row["largest_log_ratio"])
    tokens = []
    for i, word in enumerate(WORDS):
        ratio = top * 0.8**i * (-1 if i % 3 == 2 and 0 < top < 15 else 1)
        logp = -0.1 if ratio > 0 else -0.1 + ratio
        before = f"We add the numbers of both rows, and row {i} has"
        tokens.append(
            {
                "answer": i,
                "position": 17 + i,
                "token": word,
                "before": before,
                "log_ratio": ratio,
                "logp": logp,
                "ref_logp": logp - ratio,
            }
        )
    return {"step": row["step"], "tokens": tokens}


def write(
    folder: Path,
    rows: list[Row],
    settings: Mapping[str, Any] | None = None,
    tokens: list[Row] | None = None,
) -> Path:
    """Write the three files of a run; an entry of a row that is None or missing is an empty cell."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(COLUMNS)]
    lines += [",".join(_cell(row.get(name)) for name in COLUMNS) for row in rows]
    (folder / "kl_monitor.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = [tokens_of(row) for row in rows] if tokens is None else tokens
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in said)
    (folder / "kl_monitor_tokens.jsonl").write_text(text, encoding="utf-8")
    (folder / "kl_monitor.json").write_text(json.dumps({**SETTINGS, **(settings or {})}), encoding="utf-8")
    return folder


def _cell(x: Any) -> str:
    return "" if x is None else f"{x:.6g}" if isinstance(x, float) else str(x)


def changed(change: Callable[[int, Row], Row], seed: int = 0, count: int = 40) -> list[Row]:
    """A healthy run, each observation with what ``change(number, row)`` gives."""
    return [{**row, **change(i, row)} for i, row in enumerate(healthy(seed, count))]


def logging(factor: float, error: float, seed: int = 1) -> Callable[[int, Row], Row]:
    """A logged number of a given bias, as a factor, and noise, as a share of the KL."""
    draw = random.Random(seed)

    def change(_: int, row: Row) -> Row:
        expected, size = factor * row["kl"], error * row["kl"]
        noise = size * draw.gauss(0, 1)
        return {
            "logged": expected + noise,
            "logged_expected": expected,
            "logged_bias": expected - row["kl"],
            "logged_noise": noise,
            "logged_error": size,
        }

    return change


def rows_of(case: Mapping[str, Any]) -> list[Row]:
    """The healthy run with what a case of YAML changes.

    ``rows`` is set in every row and ``at`` in one of them, by number; a text is an expression of the row's
    number i and its values. ``logging`` is the factor and the error of the logged number.
    """
    logged = logging(*case["logging"]) if "logging" in case else lambda i, row: {}

    def change(i: int, row: Row) -> Row:
        values = {**row, **logged(i, row)}
        for changes in (case.get("rows", {}), case.get("at", {}).get(i, {})):
            for name, x in changes.items():
                values[name] = eval(x, {"i": i, **values}) if isinstance(x, str) else x
        return values

    return changed(change, count=case.get("count", 40))


def troubled(folder: Path, topic: str) -> Path:
    """A run with one planted trouble."""
    case = TROUBLES[topic]
    rows = rows_of(case)
    # K3 jumps by tokens that the policy hardly says any more
    tokens = [tokens_of(row, -7.4 if topic == "spike" and row["step"] == 310 else None) for row in rows]
    return write(folder, rows, case.get("settings"), tokens)
