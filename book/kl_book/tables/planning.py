"""What making tables will take, said before it starts: from the seconds that their points took last time.

A table that was never made may say in its manifest how many `minutes` a point takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from kl_book.tables import provenance
from kl_book.tables.grid import points_of, unfinished
from kl_book.tables.manifest import Manifest, read_manifest
from kl_book.tables.store import provenance_path, table_path, work_folder


class Plan(NamedTuple):
    """What a run of one table has to do.

    Attributes:
        name: The table.
        todo: Points to run; those that an earlier run finished, from the same sources, are kept.
        total: Points of the grid.
        seconds: Of computing that they will take, one after the other; None where nothing is known.
        guessed: By the manifest, because no run was ever timed.
        alone: One point at a time.
    """

    name: str
    todo: int
    total: int
    seconds: float | None
    guessed: bool = False
    alone: bool = False

    def wall(self, jobs: int) -> float:
        """Seconds until it is made, with so many points at a time; 0 where nothing is known."""
        at_a_time = 1 if self.alone else max(1, min(jobs, self.todo))
        return 0.0 if self.seconds is None else self.seconds / at_a_time


def plan(name: str, *, profile: str = "cpu", fresh: bool = False) -> Plan:
    """What a run of a table would do, and how long that took on the machine that made it last.

    Args:
        name: A folder of `tables/`.
        profile: As in `kl_book.tables.run`, as is ``fresh``.
        fresh: Also count the points that are finished.

    Raises:
        ValueError: an unknown table or profile, or a manifest that is not right.
    """
    manifest = read_manifest(name)
    every = points_of(manifest, provenance.begin(manifest, profile), work_folder(manifest, profile))
    todo = unfinished(every, fresh=fresh)
    each, guess = _seconds_each(manifest, profile), manifest.minutes if profile == "cpu" else None
    guessed = each is None and guess is not None
    if each is None and guess is not None:
        each = 60 * guess
    seconds = None if each is None else each * len(todo)
    return Plan(name, len(todo), len(every), seconds, guessed, manifest.alone)


def _seconds_each(manifest: Manifest, profile: str) -> float | None:
    """Seconds that a point took last time, on average, with as many others beside it as there were.

    A record without the seconds of its points has those of the run, and two points at a time are the default.
    """
    path = provenance_path(table_path(manifest, profile))
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        points, total = record["points"], record["points"]["total"]
        if "seconds" in points or points["resumed"]:
            return float(points["seconds"]) / total
        return float(record["wall_seconds"]) * min(2, total) / total
    except (ValueError, KeyError, TypeError):  # `check` says what is wrong with it
        return None


def announcement(plans: Sequence[Plan], jobs: int) -> list[str]:
    """Lines for the reader: each table with something to do, and all of them together.

    Args:
        plans: One per table.
        jobs: Points that run at the same time.
    """
    busy = [p for p in plans if p.todo]
    if not busy:
        return []
    lines = [
        f"{p.name}: {p.todo} of {p.total} points to run, "
        + ("never timed" if p.seconds is None else f"about {_words(p.wall(jobs))}")
        + (" by its manifest, never timed" if p.guessed else "")
        for p in busy
    ]
    timed = [p for p in busy if p.seconds is not None]
    total = f"{len(busy)} of {len(plans)} tables to make"
    if timed:
        by = "their manifests" if all(p.guessed for p in timed) else "their last runs"
        by += " and manifests" if len({p.guessed for p in timed}) > 1 else ""
        total += f": about {_words(sum(p.wall(jobs) for p in timed))} with {jobs} jobs, by {by}"
    if timed and len(timed) < len(busy):
        total += f", and {len(busy) - len(timed)} more that were never timed"
    lines.append(total)
    return lines


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
