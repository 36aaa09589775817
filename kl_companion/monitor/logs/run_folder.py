"""A monitored run as it lies in its folder: a row of numbers per observation, and tokens that stand out.

The monitor appends to the files while the run goes on, so the last line may be cut in half: it is left out,
and `MonitoredRun.cut` says so. Everything else that does not fit the format is refused.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

from kl_companion.checks import unknown_name
from kl_companion.monitor.folder import ABOUT, FILES, FORMAT, TABLE, TOKENS
from kl_companion.monitor.largest_tokens import LargeToken
from kl_companion.monitor.logs.rows import Log, RecordedRun
from kl_companion.monitor.observation import COLUMNS, COUNTS, Observation
from kl_companion.monitor.report.column_words import WORDS

Kind = tuple[Callable[[Any], bool], str]  # what a value has to be, and how that is called


def _is_number(x: object) -> TypeGuard[float]:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _is_setting(x: object) -> bool:
    return _is_number(x) and not math.isnan(x)


def _is_clamp(x: object) -> bool:
    return isinstance(x, list) and len(x) == 2 and all(end is None or _is_setting(end) for end in x)


_TOKEN: dict[str, Kind] = {
    **dict.fromkeys(("answer", "position"), (lambda x: type(x) is int, "a whole number")),
    **dict.fromkeys(("token", "before"), (lambda x: isinstance(x, str), "a text")),
    **dict.fromkeys(("log_ratio", "logp", "ref_logp"), (_is_number, "a number")),
}
_ENTRY: dict[str, Kind] = {
    "step": (lambda x: type(x) is int, "a whole number"),
    "tokens": (lambda x: isinstance(x, list), "a list"),
    "logged_as": (lambda x: isinstance(x, list) and all(isinstance(y, str) for y in x), "a list of texts"),
}
_ABOUT: dict[str, Kind] = {
    **dict.fromkeys(("beta", "temperature", "top_p"), (_is_setting, "a number or null")),
    **dict.fromkeys(
        ("trainer", "estimator", "model", "rewards_divided"),
        (lambda x: isinstance(x, str), "a text or null"),
    ),
    "clamp": (_is_clamp, "two numbers or null"),
}


class MonitoredRun(NamedTuple):
    """A monitored run.

    Attributes:
        observations: In the order of the steps; of a step that was observed twice, as after a restart, the
            later one.
        tokens: By step, those whose log-ratio is largest in size, largest first.
        settings: What the run says of itself.
        cut: Whether a last line was cut in half, and left out.
        logged_as: By step, the estimators that equal the logged number; see `monitor.logged_as`.
    """

    observations: tuple[Observation, ...]
    tokens: Mapping[int, tuple[LargeToken, ...]]
    settings: Mapping[str, Any]
    cut: bool
    logged_as: Mapping[int, tuple[str, ...]] = MappingProxyType({})

    @property
    def last(self) -> Observation:
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
    missing = [name for name in FILES if not (place / name).is_file()]
    if missing:
        raise ValueError(
            f"{str(folder)!r} has no {' and no '.join(missing)}, expected the folder into which a monitored "
            "run wrote them"
        )
    rows, row_cut = _rows(_text(place / TABLE))
    entries, token_cut = _entries(_text(place / TOKENS))
    if not rows:
        raise ValueError(
            f"{TABLE} holds no observation, expected one or more: the run has not come to its first yet"
        )
    tokens = {step: tuple(LargeToken(**x) for x in entry["tokens"]) for step, entry in entries.items()}
    equal = {step: tuple(entry["logged_as"]) for step, entry in entries.items() if "logged_as" in entry}
    return MonitoredRun(rows, tokens, _settings(_text(place / ABOUT)), row_cut or token_cut, equal)


def run_log(run: MonitoredRun) -> Log:
    """Return a monitored run as a log with the columns of `Observation` that are known.

    Added are the mean length of an answer, and the standard deviation by which rewards are divided.
    """
    every = {name: run.series(name) for name in COLUMNS[1:]}
    known = {name: column for name, column in every.items() if any(x is not None for x in column)}
    known |= {"response_tokens": known.pop("tokens"), "num_answers": known.pop("answers")}
    known["mean_length"] = [row.tokens / max(1, row.answers) for row in run.observations]
    beta = run.settings.get("beta")
    if beta and run.settings.get("rewards_divided") and "effective_beta" in known:
        known["reward_std"] = [None if x is None else x / beta for x in known["effective_beta"]]
    steps = [float(row.step) for row in run.observations]
    broken = {
        name: [(s, x) for s, x in zip(steps, column, strict=True) if x is not None and not math.isfinite(x)]
        for name, column in known.items()
    }
    columns = {name: [math.nan if x is None else float(x) for x in known[name]] for name in known}
    notes = (
        ("A last line was cut in half and left out: the run was still writing, or was stopped.",)
        if run.cut
        else ()
    )
    recorded = RecordedRun(run.tokens, {name: x for name, x in broken.items() if x}, run.logged_as)
    return Log("folder of KLMonitor", steps, columns, run.settings, notes, recorded=recorded)


def _text(path: Path) -> str:
    """A file's text; ValueError where it is none. Its last line may end within a character."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    try:
        return whole.decode() + content[len(whole) :].decode(errors="replace")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is no text at byte {error.start}, expected UTF-8") from error


def _rows(text: str) -> tuple[tuple[Observation, ...], bool]:
    """The observations by step, and whether the last line was cut in half."""
    lines = text.splitlines()
    header = next(csv.reader(lines[:1]), [])
    if tuple(header) != COLUMNS:
        for name in header:
            if name not in COLUMNS:
                raise unknown_name(f"column of {TABLE}", name, COLUMNS)
        absent = next((name for name in COLUMNS if name not in header), "another order")
        raise ValueError(f"{TABLE} has {len(header)} columns, expected {len(COLUMNS)}: {absent}")
    found: dict[int, Observation] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            row = _observation(next(csv.reader([line]), []), number)
        except ValueError:
            if number == len(lines) and not text.endswith("\n"):
                return _sorted(found), True
            raise
        found[row.step] = row
    return _sorted(found), False


def _sorted(found: dict[int, Observation]) -> tuple[Observation, ...]:
    return tuple(found[step] for step in sorted(found))


def _observation(cells: list[str], line: int) -> Observation:
    where = f"{TABLE} line {line}"
    if len(cells) != len(COLUMNS):
        raise ValueError(f"{where} has {len(cells)} cells, expected {len(COLUMNS)}")
    row: dict[str, Any] = {}
    for name, cell in zip(COLUMNS, cells, strict=True):
        if name in COUNTS:
            if not (cell.isascii() and cell.isdigit()):
                raise ValueError(f"{where}: {name} is {cell[:40]!r}, expected a whole number")
            row[name] = int(cell)
            continue
        try:
            row[name] = float(cell) if cell else None
        except ValueError as error:
            raise ValueError(f"{where}: {name} is {cell[:40]!r}, expected a number or nothing") from error
        if cell and name in WORDS and WORDS[name].share and not 0 <= row[name] <= 1 + 1e-6:
            raise ValueError(f"{where}: {name} is {cell[:40]}, expected a share from 0 to 1")
    return Observation(**row)


def _entries(text: str) -> tuple[dict[int, dict[str, Any]], bool]:
    """The lines of tokens by step, and whether the last line was cut in half."""
    found: dict[int, dict[str, Any]] = {}
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
        _check_entry(f"{TOKENS} line {number}", entry)
        found[entry["step"]] = entry
    return found, False


def _check_entry(where: str, entry: Any) -> None:
    if not isinstance(entry, dict) or set(entry) - {"logged_as"} != {"step", "tokens"}:
        raise ValueError(f"{where} is {str(entry)[:40]!r}, expected an object of step and tokens")
    _check_kinds(where, entry, _ENTRY)
    for token in entry["tokens"]:
        if not isinstance(token, dict) or set(token) != set(LargeToken._fields):
            wanted = ", ".join(LargeToken._fields)
            raise ValueError(f"{where} has the token {str(token)[:60]!r}, expected {wanted}")
        _check_kinds(where, token, _TOKEN)


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{ABOUT} is no JSON ({error.msg}), expected an object") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = found.get("format") if isinstance(found, dict) else found
        raise ValueError(f"{ABOUT} has format {str(got)[:40]}, expected {FORMAT}: another release wrote it")
    _check_kinds(ABOUT, {name: found[name] for name in _ABOUT if found.get(name) is not None}, _ABOUT)
    return found


def _check_kinds(where: str, given: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    for name, x in given.items():
        is_it, wanted = kinds[name]
        if not is_it(x):
            raise ValueError(f"{where}: {name} is {str(x)[:40]!r}, expected {wanted}")
