"""A log from a file, a folder or standard input, by its content and not by its name."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kl_companion.monitor.logs.protobuf import event_rows, offline_rows
from kl_companion.monitor.logs.rows import Log, RowCollector, flat
from kl_companion.monitor.logs.text_rows import add_text

FORMS = (
    "trainer_state.json, a console or lines of JSON, CSV or a pasted table, TensorBoard events, or a file of "
    "wandb, trackio or MLflow"
)
RUN_FILES = ("kl_monitor.csv", "kl_monitor_tokens.jsonl")  # of a monitored run
MOST_FILES = 500  # of a folder
_SQLITE, _WANDB, _GZIP = b"SQLite format 3\x00", b":W&B", b"\x1f\x8b"
_KNOWN = {
    b":SWL": "SwanLab's own file, of which nothing is read here (export the metrics as CSV)",
    b"PK\x03\x04": "a zip archive, or a checkpoint of torch",
    b"\x89PNG": "a picture",
    b"%PDF": "a PDF",
    b"\x7fELF": "a program",
    b"PAR1": "a Parquet file",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"(\xb5/\xfd": "a zstd archive",
}


def read_log(path: str | Path) -> Log:
    """Read a log that a trainer wrote.

    Args:
        path: A file of any of the forms, also compressed by gzip; a folder, of which the file with most
            numbers is read; "-" for standard input.

    Returns:
        The rows by step.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It holds no rows of numbers; the message names what it is instead.
    """
    if str(path) == "-":
        return _read(io.BytesIO(sys.stdin.buffer.read()), "standard input")
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"no file or folder {str(path)!r}, expected a log: {FORMS}")
    if any((place / name).exists() for name in RUN_FILES):
        from kl_companion.monitor.logs.run_folder import read_run, run_log

        return run_log(read_run(place))
    if place.is_dir():
        return _read_folder(place)
    with place.open("rb") as stream:
        return _read(stream, str(place), place)


def _read(stream: io.BufferedIOBase, name: str, place: Path | None = None) -> Log:
    """Read one file; `place` is needed for databases only."""
    head = stream.read(512)
    stream.seek(0)
    if not head.strip():
        raise ValueError(f"{name} is empty, expected a log: {FORMS}")
    if head.startswith(_GZIP):
        try:
            return _read(io.BufferedReader(gzip.GzipFile(fileobj=stream)), name)
        except (EOFError, OSError) as error:
            raise ValueError(f"{name} is a cut gzip file ({error}), expected a complete one") from error
    rows = RowCollector()
    try:
        return rows.log(_add(stream, head, rows, name, place))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _add(stream: io.BufferedIOBase, head: bytes, rows: RowCollector, name: str, place: Path | None) -> str:
    """Add the rows of a file by its first bytes, and return the name of its form."""
    for magic, what in _KNOWN.items():
        if head.startswith(magic):
            raise ValueError(f"it is {what}, expected a log: {FORMS}")
    if head.startswith(_SQLITE):
        if place is None:
            raise ValueError(
                "it is a database inside a stream, expected a file: SQLite reads it from the disk"
            )
        return _add_database(place, rows)
    if head.startswith(_WANDB):
        return _add_offline(stream.read(), rows)
    if b"brain.Event:" in head[:64]:
        for row in event_rows(stream.read()):
            rows.add(row)
        return "TensorBoard event file"
    encoding = _encoding(head)
    if encoding == "utf-8-sig" and (b"\x00" in head or _strange(head) > 0.3):
        raise ValueError(
            f"it begins with the bytes {head[:8].hex(' ')}, which are no text, expected a log: {FORMS}"
        )
    with io.TextIOWrapper(stream, encoding, errors="replace") as text:  # type: ignore[type-var]
        return add_text(text, rows)


def _encoding(head: bytes) -> str:
    return "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _strange(head: bytes) -> float:
    """Return the share of bytes that no text in UTF-8 has."""
    text = head.decode("utf-8", errors="replace")
    odd = sum(c == "\ufffd" or (ord(c) < 32 and c not in "\r\n\t\x1b\x08") for c in text[:-3])
    return odd / max(1, len(text))


def _add_offline(data: bytes, rows: RowCollector) -> str:
    history, config, console = offline_rows(data)
    rows.config.update(flat(config))
    for row in history:
        rows.add({key: value for key, value in row.items() if not isinstance(value, dict | list)})
    if not rows.count and console:
        rows.notes.append("The file holds no history, as after a crash: its console lines were read.")
        add_text(console, rows)
    return "offline file of wandb"


def _add_database(place: Path, rows: RowCollector) -> str:
    """Add the rows of a trackio or an MLflow database; of several runs the one with most values."""
    base = sqlite3.connect(f"file:{place}?mode=ro", uri=True)
    try:
        tables = {name for (name,) in base.execute("select name from sqlite_master where type='table'")}
        names = {x[1] for x in base.execute("pragma table_info(metrics)")} if "metrics" in tables else set()
        if {"run_name", "step", "metrics"} <= names:
            return _add_trackio(base, tables, rows)
        if {"key", "value", "step", "run_uuid"} <= names:
            return _add_mlflow(base, tables, rows)
    except sqlite3.DatabaseError as error:
        raise ValueError(f"it is a database that cannot be read ({error})") from error
    finally:
        base.close()
    raise ValueError(
        f"it is a database with the tables {sorted(tables)[:6]}, expected one of trackio or MLflow"
    )


def _one_run(base: sqlite3.Connection, column: str, rows: RowCollector) -> str:
    runs = base.execute(
        f"select {column}, count(*) from metrics group by {column} order by 2 desc"
    ).fetchall()
    if not runs:
        raise ValueError("the database has no metrics, expected rows")
    if len(runs) > 1:
        rows.notes.append(
            f"The database has {len(runs)} runs; this is {runs[0][0]!r}, which has most values."
        )
    return str(runs[0][0])


def _add_trackio(base: sqlite3.Connection, tables: set[str], rows: RowCollector) -> str:
    run = _one_run(base, "run_name", rows)
    for step, metrics in base.execute(
        "select step, metrics from metrics where run_name=? order by id", (run,)
    ):
        rows.add({"step": step, **_object(metrics)})
    if "configs" in tables:
        for (config,) in base.execute("select config from configs where run_name=?", (run,)):
            rows.config.update(flat(_object(config)))
    return "database of trackio"


def _object(text: str | bytes) -> dict[str, Any]:
    content = json.loads(text)
    return content if isinstance(content, dict) else {}


def _add_mlflow(base: sqlite3.Connection, tables: set[str], rows: RowCollector) -> str:
    run = _one_run(base, "run_uuid", rows)
    query = "select step, key, value from metrics where run_uuid=? order by timestamp"
    _add_by_step(
        ((step, key.replace("_at_", "@"), value) for step, key, value in base.execute(query, (run,))), rows
    )
    if "params" in tables:
        for key, value in base.execute("select key, value from params where run_uuid=?", (run,)):
            rows.config[key] = value
    return "database of MLflow"


def _read_folder(folder: Path) -> Log:
    """Read every file of a folder that is a log, and return the one with most numbers."""
    stores = sorted({x.parent for x in folder.rglob("metrics/*") if x.is_file()})
    logs: list[tuple[int, str, Log]] = []
    events: dict[Path, list[Path]] = {}
    failures: list[str] = []
    for place in _files(folder):
        with place.open("rb") as stream:
            if b"brain.Event:" in stream.read(64):
                events.setdefault(place.parent, []).append(place)
                continue
        try:
            log = read_log(place)
        except (ValueError, OSError) as error:
            failures.append(str(error))
            continue
        logs.append((_size(log), str(place), log))
    for parent, places in events.items():
        log = _read_events(places)
        logs.append((_size(log), str(parent), log))
    for store in stores:
        stored = _read_store(store)
        if stored:
            logs.append((_size(stored), str(store.parent), stored))
    if not logs:
        what = (
            f"{len(failures)} files and none of them a log (the first: {failures[0]})"
            if failures
            else "no file"
        )
        raise ValueError(f"the folder {str(folder)!r} has {what}, expected a log: {FORMS}")
    _, name, best = max(logs, key=lambda entry: entry[0])
    inside = Path(name).relative_to(folder) if name != str(folder) else Path(".")
    others = f"; {len(logs) - 1} others hold fewer numbers" if len(logs) > 1 else ""
    return best._replace(notes=(f"The log is {str(inside)!r} of the folder{others}.", *best.notes))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that may be logs, newest first, and not those of a metrics store."""
    every = (x for x in folder.rglob("*") if x.is_file() and x.parent.name != "metrics")
    return iter(sorted(every, key=lambda x: x.stat().st_mtime, reverse=True)[:MOST_FILES])


def _size(log: Log) -> int:
    return sum(x == x for column in log.columns.values() for x in column)


def _read_events(places: list[Path]) -> Log:
    rows = RowCollector()
    for place in sorted(places):
        for row in event_rows(place.read_bytes()):
            rows.add(row)
    return rows.log("TensorBoard event files")


def _read_store(store: Path) -> Log | None:
    """Read MLflow's file store: a file per key with lines of timestamp, value and step."""
    lines = (
        (place.relative_to(store).as_posix(), line.split())
        for place in store.rglob("*")
        if place.is_file()
        for line in place.read_text("utf-8", errors="replace").splitlines()
    )
    values = list(lines)
    if any(len(parts) != 3 for _, parts in values):
        return None
    rows = RowCollector()
    _add_by_step(((int(step), key, value) for key, (_, value, step) in values), rows)
    return rows.log("file store of MLflow") if rows.count else None


def _add_by_step(values: Iterable[tuple[int, str, Any]], rows: RowCollector) -> None:
    """Add a row per step from single values of step and key."""
    steps: dict[int, dict[str, Any]] = {}
    for step, key, value in values:
        steps.setdefault(step, {})[key] = value
    for step in sorted(steps):
        rows.add({"step": step, **steps[step]})
