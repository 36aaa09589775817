"""A monitored run as it lies in its folder: a row of numbers per observation, and tokens that stand out.

The monitor appends to the files while the run goes on, so the last line may be cut in half: it is left out,
and `MonitoredRun.cut` says so. Everything else that does not fit the format is refused.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kl_companion.checks import unknown_name

ROWS, TOKENS, SETTINGS = "kl_monitor.csv", "kl_monitor_tokens.jsonl", "kl_monitor.json"
FORMAT = 1


class RunRow(NamedTuple):
    """One row; None where a number is not known, NaN or an infinity where the run had one.

    Attributes:
        step: The trainer's optimizer step.
        answers: How many completions were read.
        tokens: How many completion tokens were read.
        kl: Exact reverse KL of the next token, mean over tokens, in nats; `kl_low` and `kl_high` are the ends
            of its 95 % interval.
        forward_kl: The same for the forward KL.
        kl_of_answers: Mean over answers of the sum of the exact next-token KLs, in nats.
        entropy: Mean entropy of the policy's next token, in nats.
        logged: The trainer's own number for the same tokens.
        logged_expected: What its estimator has as expectation there.
        logged_bias: Expectation minus exact KL.
        logged_noise: Number minus expectation.
        logged_error: Standard error of its estimator.
        k1_error: Standard error that K1 would have had; likewise K2 and K3.
        k2_bias: Expectation of K2 minus exact KL.
        dead_zone: Share of tokens whose log-ratio a clamp cuts.
        largest_log_ratio: Largest size of the log of policy over reference, of a sampled token.
        effective_beta: Beta in units of the undivided reward.
        equal_groups: Share of groups all of whose rewards agree.
        length_pull_kl: Push of the KL term to shorter answers, per answer; `length_pull_reward` likewise.
        mismatch: Mean distance of the engine's log-prob from the recomputed one, per token.
        mismatch_kl: Estimated KL(engine, trainer) per token.
        mismatch_temperature: Part of another temperature in `mismatch`; likewise truncation and rounding.
        engine_temperature: Temperature that explains the mismatch best.
        engine_kept: Kept probability mass that explains it best.
        reward: Mean reward.
        loss: The trainer's loss.
        seconds: Time that the observation took.
    """

    step: int
    answers: int
    tokens: int
    kl: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    forward_kl: float | None = None
    forward_kl_low: float | None = None
    forward_kl_high: float | None = None
    kl_of_answers: float | None = None
    entropy: float | None = None
    logged: float | None = None
    logged_expected: float | None = None
    logged_bias: float | None = None
    logged_noise: float | None = None
    logged_error: float | None = None
    k1_error: float | None = None
    k2_error: float | None = None
    k3_error: float | None = None
    k2_bias: float | None = None
    dead_zone: float | None = None
    largest_log_ratio: float | None = None
    effective_beta: float | None = None
    equal_groups: float | None = None
    length_pull_kl: float | None = None
    length_pull_reward: float | None = None
    mismatch: float | None = None
    mismatch_kl: float | None = None
    mismatch_temperature: float | None = None
    mismatch_truncation: float | None = None
    mismatch_rounding: float | None = None
    engine_temperature: float | None = None
    engine_kept: float | None = None
    reward: float | None = None
    loss: float | None = None
    seconds: float | None = None


COUNTS = ("step", "answers", "tokens")
SHARES = ("dead_zone", "equal_groups", "engine_kept")


class RunToken(NamedTuple):
    """A sampled token whose log-ratio stands out; `token` and `before` are words, or ids as text."""

    answer: int
    position: int
    token: str
    before: str
    log_ratio: float
    logp: float
    ref_logp: float


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("answer", "position"), ((int,), "a whole number")),
    **dict.fromkeys(("token", "before"), ((str,), "a text")),
    **dict.fromkeys(("log_ratio", "logp", "ref_logp"), ((int, float), "a number")),
}


class MonitoredRun(NamedTuple):
    """A monitored run.

    Attributes:
        observations: In the order of the steps; of a step that was observed twice, as after a restart, the
            later one.
        tokens: By step, those whose log-ratio is largest in size, largest first.
        settings: What the run says of itself.
        cut: Whether a last line was cut in half, and left out.
    """

    observations: tuple[RunRow, ...]
    tokens: Mapping[int, tuple[RunToken, ...]]
    settings: Mapping[str, Any]
    cut: bool

    @property
    def last(self) -> RunRow:
        """The latest observation."""
        return self.observations[-1]

    def series(self, name: str) -> list[float | None]:
        """One column of the table, an entry per observation."""
        return [getattr(seen, name) for seen in self.observations]


def read_run(folder: str | Path) -> MonitoredRun:
    """Read the three files of a monitored run.

    Args:
        folder: Where the monitor wrote `kl_monitor.csv`, `kl_monitor_tokens.jsonl` and `kl_monitor.json`.

    Raises:
        ValueError: a file is missing, or holds something else than the format says; the message names file,
            line and value.
    """
    place = Path(folder)
    missing = [name for name in (ROWS, TOKENS, SETTINGS) if not (place / name).is_file()]
    if missing:
        raise ValueError(
            f"{str(folder)!r} has no {' and no '.join(missing)}, expected the folder into which a monitored "
            "run wrote them"
        )
    rows, row_cut = _rows(_text(place / ROWS))
    tokens, token_cut = _tokens(_text(place / TOKENS))
    if not rows:
        raise ValueError(
            f"{ROWS} holds no observation, expected one or more: the run has not come to its first yet"
        )
    return MonitoredRun(rows, tokens, _settings(_text(place / SETTINGS)), row_cut or token_cut)


def _text(path: Path) -> str:
    """A file's text; ValueError where it is none. Its last line may end within a character."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    try:
        return whole.decode() + content[len(whole) :].decode(errors="replace")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is no text at byte {error.start}, expected UTF-8") from error


def _rows(text: str) -> tuple[tuple[RunRow, ...], bool]:
    """The observations by step, and whether the last line was cut in half."""
    lines = text.splitlines()
    header = next(csv.reader(lines[:1]), [])
    if tuple(header) != RunRow._fields:
        for name in header:
            if name not in RunRow._fields:
                raise unknown_name(f"column of {ROWS}", name, RunRow._fields)
        absent = next((name for name in RunRow._fields if name not in header), "another order")
        raise ValueError(f"{ROWS} has {len(header)} columns, expected {len(RunRow._fields)}: {absent}")
    found: dict[int, RunRow] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            row = _observation(next(csv.reader([line]), []), number)
        except ValueError:
            if number == len(lines) and not text.endswith("\n"):
                return _sorted(found), True
            raise
        found[row.step] = row
    return _sorted(found), False


def _sorted(found: dict[int, RunRow]) -> tuple[RunRow, ...]:
    return tuple(found[step] for step in sorted(found))


def _observation(cells: list[str], line: int) -> RunRow:
    where = f"{ROWS} line {line}"
    if len(cells) != len(RunRow._fields):
        raise ValueError(f"{where} has {len(cells)} cells, expected {len(RunRow._fields)}")
    row: dict[str, Any] = {}
    for name, cell in zip(RunRow._fields, cells, strict=True):
        if name in COUNTS:
            if not (cell.isascii() and cell.isdigit()):
                raise ValueError(f"{where}: {name} is {cell[:40]!r}, expected a whole number")
            row[name] = int(cell)
            continue
        try:
            row[name] = float(cell) if cell else None
        except ValueError as error:
            raise ValueError(f"{where}: {name} is {cell[:40]!r}, expected a number or nothing") from error
        if name in SHARES and cell and not 0 <= row[name] <= 1 + 1e-6:
            raise ValueError(f"{where}: {name} is {cell[:40]}, expected a share from 0 to 1")
    return RunRow(**row)


def _tokens(text: str) -> tuple[dict[int, tuple[RunToken, ...]], bool]:
    """The tokens by step, and whether the last line was cut in half."""
    found: dict[int, tuple[RunToken, ...]] = {}
    lines = text.split("\n")  # JSON may hold other ends of lines inside a text
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return found, True
            raise ValueError(
                f"{TOKENS} line {number} is no JSON ({error.msg}), expected an object"
            ) from error
        found[_step(entry, number)] = tuple(_token(x, number) for x in entry["tokens"])
    return found, False


def _step(entry: Any, line: int) -> int:
    if not isinstance(entry, dict) or set(entry) != {"step", "tokens"} or type(entry["step"]) is not int:
        raise ValueError(
            f"{TOKENS} line {line} is {str(entry)[:40]!r}, expected an object of step and tokens"
        )
    if not isinstance(entry["tokens"], list):
        raise ValueError(f"{TOKENS} line {line}: tokens is {str(entry['tokens'])[:40]!r}, expected a list")
    return int(entry["step"])


def _token(given: Any, line: int) -> RunToken:
    if not isinstance(given, dict) or set(given) != set(RunToken._fields):
        raise ValueError(
            f"{TOKENS} line {line} has the token {str(given)[:60]!r}, expected {', '.join(RunToken._fields)}"
        )
    for name, (allowed, wanted) in _KINDS.items():
        if isinstance(given[name], bool) or not isinstance(given[name], allowed):
            raise ValueError(f"{TOKENS} line {line}: {name} is {str(given[name])[:40]!r}, expected {wanted}")
    return RunToken(**given)


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{SETTINGS} is no JSON ({error.msg}), expected an object") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = found.get("format") if isinstance(found, dict) else found
        raise ValueError(
            f"{SETTINGS} has format {str(got)[:40]}, expected {FORMAT}: another release wrote it"
        )
    for name in ("beta", "temperature", "top_p"):
        if found.get(name) is not None and not _is_number(found[name]):
            raise ValueError(f"{SETTINGS}: {name} is {str(found[name])[:40]!r}, expected a number or null")
    for name in ("trainer", "estimator", "model", "rewards_divided"):
        if found.get(name) is not None and not isinstance(found[name], str):
            raise ValueError(f"{SETTINGS}: {name} is {str(found[name])[:40]!r}, expected a text or null")
    clamp = found.get("clamp")
    if clamp is not None and not (
        isinstance(clamp, list) and len(clamp) == 2 and all(x is None or _is_number(x) for x in clamp)
    ):
        raise ValueError(f"{SETTINGS}: clamp is {str(clamp)[:40]!r}, expected two numbers or null")
    return found


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and not math.isnan(x)
