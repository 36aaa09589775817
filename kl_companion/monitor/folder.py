"""The files of a monitored run: a table that grows by whole rows, tokens in words, and what the run is.

* `kl_monitor.csv`: a header, and a row per observation with the columns of `Observation`.
* `kl_monitor_tokens.jsonl`: a line per observation with the tokens of the largest log-ratios, and the names
  of the estimators that equal the logged number.
* `kl_monitor.json`: what the run says of itself, written when it starts.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kl_companion.files import write_atomically
from kl_companion.monitor.largest_tokens import LargeToken
from kl_companion.monitor.observation import COLUMNS, Observation

FILES = TABLE, TOKENS, ABOUT = "kl_monitor.csv", "kl_monitor_tokens.jsonl", "kl_monitor.json"
FORMAT = 1


def start(folder: Path, about: Mapping[str, Any], *, resume: bool = False) -> None:
    """Begin the files of a run; those of an earlier run are kept under other names, `kl_monitor-1.csv`.

    Args:
        folder: Made where it is missing.
        about: What the run says of itself, beside the format.
        resume: Go on with the files that are there. Steps that were undone are observed a second time: the
            later row of a step counts.

    Raises:
        ValueError: with ``resume``, a table of other columns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / TABLE
    if resume and table.exists():
        _check_columns(table)
        _cut(table)
        if (folder / TOKENS).exists():
            _cut(folder / TOKENS)
        return
    _put_aside(folder)
    write_atomically(folder / ABOUT, json.dumps({"format": FORMAT, **about}, indent=1) + "\n")
    write_atomically(folder / TOKENS, "")
    write_atomically(table, _line(COLUMNS))


def append(
    folder: Path,
    observation: Observation,
    tokens: Iterable[LargeToken],
    logged_as: Iterable[str] | None = None,
) -> None:
    """One row and one line, each written in one piece and flushed."""
    _append(folder / TABLE, _line(observation.cells()))
    entry: dict[str, Any] = {"step": observation.step, "tokens": [token._asdict() for token in tokens]}
    entry |= {} if logged_as is None else {"logged_as": list(logged_as)}
    _append(folder / TOKENS, json.dumps(entry) + "\n")


def _line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _append(path: Path, line: str) -> None:
    with path.open("ab", buffering=0) as stream:
        stream.write(line.encode())
        os.fsync(stream.fileno())


def _check_columns(table: Path) -> None:
    with table.open(encoding="utf-8", newline="") as stream:
        header = next(csv.reader(stream), [])
    if tuple(header) != COLUMNS:
        raise ValueError(
            f"{table} has the columns {', '.join(header)[:120]}, expected those of this version: "
            "another folder, or no resume"
        )


def _cut(path: Path) -> None:
    """Take away what a process that was killed left of its last line."""
    whole = path.read_bytes()
    if whole and not whole.endswith(b"\n"):
        write_atomically(path, whole[: whole.rfind(b"\n") + 1])


def _put_aside(folder: Path) -> None:
    """Rename the files of an earlier run, by the first number that is free for all of them."""
    there = [folder / name for name in FILES if (folder / name).exists()]
    number = 1
    while any(_aside(path, number).exists() for path in there):
        number += 1
    for path in there:
        path.rename(_aside(path, number))


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")
