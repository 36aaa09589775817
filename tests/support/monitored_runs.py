"""Folders of monitored runs, written by the format and not by the monitor: healthy, or with one trouble."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SETTINGS = {
    "format": 1,
    "trainer": "trl.GRPOTrainer",
    "estimator": "k3",
    "clamp": None,
    "beta": 0.04,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "rewards_divided": "group_std",
    "every": 10,
    "rows": 8,
    "model": "a toy model",
    "vocabulary": 49152,
}
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


def _far(i: int, row: Row) -> Row:
    kl = 0.02 * 1.09**i
    return {
        "kl": kl,
        "kl_low": 0.9 * kl,
        "kl_high": 1.1 * kl,
        "kl_of_answers": 120 * kl,
        "logged": kl,
        "logged_expected": kl,
        "logged_noise": 0.0,
        "logged_error": 0.05 * kl,
    }


def _constant(**values: Any) -> Callable[[int, Row], Row]:
    return lambda _i, _row: values


def _spiking(i: int, row: Row) -> Row:
    if i != 30:
        return {}
    logged = 10 * row["kl"]
    return {
        "logged": logged,
        "logged_noise": logged - row["kl"],
        "logged_error": 6 * row["kl"],
        "largest_log_ratio": 7.4,
    }


# topic of the verdict -> what is planted, settings, and what its sentence has to hold
TROUBLES: dict[str, tuple[Callable[[int, Row], Row], dict[str, Any], str]] = {
    "not_a_number": (
        lambda i, _: {"logged": math.nan} if i == 12 else {},
        {},
        "At step 130 the logged number is NaN.",
    ),
    "impossible_token": (
        lambda i, _: {"largest_log_ratio": 27.5, "logged": 1.6e9, "logged_noise": None} if i == 25 else {},
        {},
        'A token has a log-ratio of 28 nats at step 260: " maybe".',
    ),
    "no_kl": (
        _constant(
            kl=0.0,
            kl_low=0.0,
            kl_high=0.0,
            forward_kl=0.0,
            kl_of_answers=0.0,
            logged=0.0,
            logged_noise=0.0,
            logged_expected=0.0,
            logged_error=0.0,
        ),
        {},
        "Policy and reference are the same at all 40 observations: the KL is 0.",
    ),
    "not_its_noise": (
        lambda _, row: {"logged": 2 * row["kl"], "logged_noise": row["kl"]},
        {},
        "The logged number is not K3 of these tokens: it is 20 standard errors away",
    ),
    "mismatch": (
        _constant(
            mismatch=0.06,
            mismatch_temperature=0.05,
            mismatch_rounding=0.01,
            engine_temperature=0.7,
            mismatch_kl=0.004,
        ),
        {},
        "differ from the trainer's by 0.06 nats per token, mostly by another temperature.",
    ),
    "far": (
        _far,
        {},
        "the KL is 0.49 nats per token (59 per answer), 4.7 times as much as around step 200.",
    ),
    "dead_zone": (
        _constant(dead_zone=0.042),
        {"clamp": [-0.5, 0.5]},
        "to [−0.5, 0.5] leaves 4.2 % of the tokens",
    ),
    "entropy": (lambda i, _: {"entropy": 0.6 * 0.93**i}, {}, "fell from 0.56 to 0.041 nats."),
    "effective_beta": (_constant(effective_beta=0.004), {}, "β = 0.04 acts like 0.004: 10 times weaker."),
    "equal_groups": (_constant(equal_groups=0.62), {}, "In 62 % of the groups all rewards agree"),
    "bias": (logging(1.4, 0.05), {"estimator": "k2"}, "K2 overstates the KL by 40 %: its expectation is "),
    "other_divergence": (logging(1.4, 0.05), {"estimator": "k5"}, "K5 estimates the forward KL, 0.04"),
    "spike": (_spiking, {}, "At step 310 the logged number jumps to 0.28"),
    "noise": (logging(1, 0.8), {"estimator": "k1"}, "One value of the logged number is mostly noise"),
    "length_pull": (
        _constant(length_pull_kl=-0.03, length_pull_reward=0.02),
        {},
        "pulls toward longer answers",
    ),
    "wide": (
        lambda _, row: {"kl_low": 0.2 * row["kl"], "kl_high": 1.8 * row["kl"]},
        {},
        "64 answers are too few",
    ),
    "negative": (
        lambda i, _: {"logged": -0.001, "logged_noise": None} if i == 3 else {},
        {},
        "K3 cannot be.",
    ),
}


def troubled(folder: Path, topic: str) -> Path:
    """A run with one planted trouble."""
    change, settings, _ = TROUBLES[topic]
    rows = changed(change)
    # K3 jumps by tokens that the policy hardly says any more
    tokens = [tokens_of(row, -7.4 if topic == "spike" and row["step"] == 310 else None) for row in rows]
    return write(folder, rows, settings, tokens)
