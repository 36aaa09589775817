"""Tables that older code made are confirmed: some of their points are made again, and must be the same.

After a change of a formula nobody knows what it does to the numbers of a table. Making some points again with
the code of today tells it without the hours that all of them take. Rows are the same if their cells are, to
the digits of the manifest; on another processor a manifest may allow a `tolerance`, and says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kl_book.tables import provenance
from kl_book.tables.checking import read_record
from kl_book.tables.grid import points_of
from kl_book.tables.manifest import read_manifest
from kl_book.tables.notebook_process import HERE, TableError
from kl_book.tables.rows import Column, Row, parse, render
from kl_book.tables.runner import made_rows
from kl_book.tables.store import command, provenance_path, read_rows, table_path
from kl_companion.files import write_atomically

SHOWN = 5  # differences that a message lists


def confirm(
    name: str,
    *,
    profile: str = "cpu",
    seconds: float = 60.0,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Make points of a table again for some seconds, and note in its provenance that they are the same.

    Args:
        name: A folder of `tables/`.
        profile: "cpu" or "gpu".
        seconds: After which no further point is begun; at least one is made.
        progress: Receives a line per point.

    Returns:
        The number of points that were made again.

    Raises:
        ValueError: no such table, or one that is not `deterministic`: its points are never the same.
        FileNotFoundError: the table was not made yet.
        TableError: a point failed, or its rows are not those of the table.
    """
    manifest = read_manifest(name)
    if not manifest.deterministic:
        raise ValueError(
            f"table {name!r} is not deterministic, expected one whose rows are the same each time"
        )
    target = table_path(manifest, profile)
    path = provenance_path(target)
    if not target.is_file() or not path.is_file():
        raise FileNotFoundError(f"{target} does not exist. Make it: {command(name, profile)}")
    record, now = read_record(path), provenance.begin(manifest, profile)
    table = read_rows(target, manifest.columns)
    within = 0.0 if record["device"] == now["device"] else manifest.tolerance
    begin, done = time.monotonic(), 0
    with TemporaryDirectory(prefix="kl-confirm-") as folder:
        every = points_of(manifest, now, Path(folder))
        for point in every:
            if done and time.monotonic() - begin > seconds:
                break
            rows = made_rows(manifest, point, HERE)
            text = render(rows, manifest.columns, manifest.key, now["grid"])
            again = parse(text, manifest.columns)
            if lines := differences(again, table, manifest.columns, manifest.key, within):
                more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
                raise TableError(
                    f"{name}, point {point.named()}{'; '.join(lines[:SHOWN])}{more}. "
                    f"Make the table again: {command(name, profile)}"
                )
            done += 1
            if progress is not None:
                progress(f"{name} [{done}/{len(every)}] {point.named()}the same rows")
    record["package_files"] = now["package_files"]
    record["digests"]["package"] = now["digests"]["package"]
    record["confirmed"] = {key: now[key] for key in ("commit", "dirty", "device", "versions", "start")} | {
        "points": done
    }
    write_atomically(path, json.dumps(record, sort_keys=True, indent=2) + "\n")
    return done


def differences(
    again: Sequence[Row], table: Sequence[Row], columns: Sequence[Column], key: Sequence[str], within: float
) -> list[str]:
    """Cells of rows that are not in a table with the same key and the same value, a line each.

    Args:
        again: Rows that were made again, to the digits of the columns.
        table: Rows of the table, of these and other keys.
        columns: Of both.
        key: Columns that tell rows apart.
        within: A float x agrees with y if ``|x - y| <= within (1 + |y|)``.
    """
    rows = {tuple(row[name] for name in key): row for row in table}
    lines = []
    for row in again:
        place = tuple(row[name] for name in key)
        if (old := rows.get(place)) is None:
            lines.append(f"a row {place} that the table has not")
            continue
        for column in columns:
            new, was = row[column.name], old[column.name]
            if new != was and not _close(new, was, within):
                lines.append(f"{column.name} at {place} is {new!r}, {was!r} in the table")
    return lines


def _close(new: Any, was: Any, within: float) -> bool:
    numbers = isinstance(new, float) and isinstance(was, float)
    return numbers and abs(new - was) <= within * (1 + abs(was))
