"""The same table again: byte for byte with one thread, and within a tolerance with two.

Points of a table are processes of their own, so a table is the same when each of its points is. Tables that
are made in five minutes are made whole; of a longer one the last point of the grid is taken, one of the
shortest.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from kl_companion.tables import names, provenance
from kl_companion.tables.manifest import Manifest, read_manifest
from kl_companion.tables.rows import Row, parse, render
from kl_companion.tables.runner import ONE_THREAD, WRITTEN, Point, points_of, run_here
from kl_companion.tables.store import provenance_path, table_path
from tests.reliability.trying import Trial

SHORT = 300.0  # seconds of a table that is made whole
TWO_THREADS = dict.fromkeys(ONE_THREAD, "2")
TRAINED = ("ema_pg", "llm_distillation", "llm_rl", "llm_oracle")  # a network in float32 was trained for them
EXACT, LOOSE = 1e-6, 0.25  # of a cell, relative to the larger of 1 and its size
QUICK = "value_mse"
AT_A_TIME = 2  # points; each run is a process of its own


class Again(NamedTuple):
    """One point made three times: are its lines of the table the same bytes, and how far is the third?"""

    name: str
    same: bool
    distance: float


def again(manifest: Manifest, point: Point, folder: Path, *, once: bool = False) -> Again:
    """Make a point twice with one thread and once with two; `once` takes the first for the second."""
    written = []
    for number, variables in enumerate([{}, TWO_THREADS] if once else [{}, {}, TWO_THREADS]):
        place = folder / str(number)
        place.mkdir()
        status, message = run_here(manifest.notebook, point.parameters, place, variables)
        if status:
            raise RuntimeError(f"{manifest.name} {point.values}: {message}")
        written.append((place / WRITTEN).read_text(encoding="utf-8"))
    rows = [parse(text, manifest.columns, point.values) for text in written]
    tables = [render(some, manifest.columns, manifest.key, {}) for some in rows]
    same = once or tables[0] == tables[1]
    return Again(f"{manifest.name} {point.values}", same, distance(rows[0], rows[-1]))


def distance(one: Sequence[Row], other: Sequence[Row]) -> float:
    """The largest difference of two numbers in the same cell, relative to the larger of 1 and their size.

    Infinity where anything else differs: the number of rows, a text, a gap.
    """
    if len(one) != len(other):
        return math.inf
    found = 0.0
    for a, b in zip(one, other, strict=True):
        for name in a:
            x, y = a[name], b[name]
            if x == y:
                continue
            if not (isinstance(x, float) and isinstance(y, float)):
                return math.inf
            found = max(found, abs(x - y) / max(1.0, abs(x), abs(y)))
    return found


def seconds(manifest: Manifest) -> float:
    """What the table took when it was made."""
    record = json.loads(provenance_path(table_path(manifest, "cpu")).read_text(encoding="utf-8"))
    return float(record["wall_seconds"])


def chosen(manifest: Manifest) -> list[Point]:
    """The points of a table that are made again."""
    points = points_of(manifest, provenance.begin(manifest, "cpu"), Path())
    return points if seconds(manifest) <= SHORT else points[-1:]


def trials(quick: bool, seed: int) -> Iterator[Trial]:
    """Three lines: bytes with one thread, numbers with two, of what is computed and of what is trained.

    The quick form takes one point and leaves out the second time: `make test` makes each quick table again
    and compares it with the committed file.
    """
    manifests = [read_manifest(name) for name in ([QUICK] if quick else names())]
    manifests = [manifest for manifest in manifests if manifest.deterministic]
    todo = [
        (manifest, point)
        for manifest in sorted(manifests, key=seconds, reverse=True)  # the long ones first: no core waits
        for point in chosen(manifest)[-1 if quick else 0 :]
    ]

    def made(pair: tuple[Manifest, Point]) -> Again:
        with tempfile.TemporaryDirectory() as folder:
            return again(*pair, Path(folder), once=quick)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = list(pool.map(made, todo))
    if not quick:
        other = [f"{one.name}: other bytes the second time" for one in found if not one.same]
        yield Trial("points of tables, made twice: the same bytes", len(found), len(other), said=tuple(other))
    for what, tolerance, trained in (
        (f"points of tables, with two threads: the same to {EXACT:g}", EXACT, False),
        (f"points of tables that train a network, with two threads: the same to {LOOSE:g}", LOOSE, True),
    ):
        group = [one for one in found if (one.name.split()[0] in TRAINED) == trained]
        far = [one for one in group if not one.distance <= tolerance]
        farthest = sorted(group, key=lambda one: one.distance)[-1:]  # whether the tolerance is a sharp one
        said = tuple(f"{one.name}: {one.distance:.3g} apart" for one in far or farthest)
        if group:
            yield Trial(what, len(group), len(far), said=said)
