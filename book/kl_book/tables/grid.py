"""The points of a table's grid: what each one is run with, and where what it leaves is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kl_book.tables.manifest import Manifest, points
from kl_book.tables.rows import Cell

SECONDS = "seconds.txt"  # how long a point took, for the plan of the next run


class Point(NamedTuple):
    """One run of the notebook: its values on the grid, and the folder of what it leaves."""

    values: dict[str, Cell]
    parameters: dict[str, Any]
    folder: Path

    @property
    def rows(self) -> Path:
        """The file that exists when, and only when, the point is finished."""
        return self.folder / "rows.csv"

    def seconds(self) -> float | None:
        """How long the point took, whichever run finished it; None where that was not kept."""
        path = self.folder / SECONDS
        return float(path.read_text(encoding="utf-8")) if path.is_file() else None

    def named(self) -> str:
        """Its values, as messages name it."""
        values = " ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{values or 'the only one'}: "


def points_of(manifest: Manifest, record: Mapping[str, Any], work: Path) -> list[Point]:
    """The points of the grid; a folder's name is the digest of all that its rows depend on."""
    sources = record["digests"]
    columns = [(column.name, column.type, column.missing) for column in manifest.columns]
    common = [sources["notebook"], sources["package"], record["versions"], columns]
    found = []
    for values in points(record["grid"]):
        given = {**record["parameters"], **values}
        content = json.dumps([common, given], sort_keys=True).encode()
        found.append(Point(values, given, work / hashlib.sha256(content).hexdigest()[:16]))
    return found


def unfinished(every: Sequence[Point], *, fresh: bool = False) -> list[Point]:
    """The points that a run would run."""
    return [point for point in every if fresh or not point.rows.is_file()]
