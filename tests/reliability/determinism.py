"""The same table again: byte for byte with one thread, and within a tolerance with two.

Points of a table are processes of their own, so a table is the same when each of its points is. Tables that
are made in five minutes are made whole, with two threads those that are made in one; of a longer one the last
point of the grid is taken, one of the shortest.

Two threads add up in another order. What is computed differs in its last digits. A network that is trained in
float32 on its own draws differs by as little until one rounding turns one draw: from there on that run is
another sample. So of a trained point half of the lines have to be within the tolerance, not all.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from kl_book.tables import names, provenance
from kl_book.tables.grid import Point, points_of
from kl_book.tables.manifest import Manifest, read_manifest
from kl_book.tables.notebook_process import ONE_THREAD, WRITTEN, run_here
from kl_book.tables.rows import Row, parse, render
from kl_book.tables.store import provenance_path, table_path
from tests.reliability.trying import Trial

WHOLE, WHOLE_WITH_TWO = 300.0, 60.0  # seconds of a table that is made whole
# threads that wait do not turn in circles, where more of them than cores would take the time from each other
TWO_THREADS = {**dict.fromkeys(ONE_THREAD, "2"), "OMP_WAIT_POLICY": "PASSIVE"}
TRAINED = ("ema_pg", "llm_distillation", "llm_rl", "llm_oracle")  # a network in float32 was trained for them
EXACT, LOOSE = 1e-6, 1e-3  # of a cell, relative to the larger of 1 and its size
QUICK = "value_mse"
AT_A_TIME = 2  # points; each run is a process of its own


class Again(NamedTuple):
    """One point made again: are its lines of the table the same bytes, and how far are those of two threads?

    `distances` has a number for each line. None where it was not made that way.
    """

    name: str
    same: bool | None
    distances: list[float] | None


def again(manifest: Manifest, point: Point, folder: Path, *, same: bool = True, two: bool = True) -> Again:
    """Make a point with one thread, again if `same`, and with two threads if `two`."""
    written = []
    for number, variables in enumerate([{}, *[{}] * same, *[TWO_THREADS] * two]):
        place = folder / str(number)
        place.mkdir()
        status, message = run_here(manifest.notebook, point.parameters, place, variables)
        if status:
            raise RuntimeError(f"{manifest.name} {point.values}: {message}")
        written.append((place / WRITTEN).read_text(encoding="utf-8"))
    rows = [parse(text, manifest.columns, point.values) for text in written]
    tables = [render(some, manifest.columns, manifest.key, {}) for some in rows]
    return Again(
        f"{manifest.name} {point.values}",
        tables[0] == tables[1] if same else None,
        distances(rows[0], rows[-1]) if two else None,
    )


def distances(one: Sequence[Row], other: Sequence[Row]) -> list[float]:
    """Each line's largest difference of two numbers in a cell, relative to the larger of 1 and their sizes.

    Infinity where anything else differs, a text or a gap; for every line, where their numbers do.
    """
    if len(one) != len(other):
        return [math.inf] * max(len(one), len(other))
    return [max(_apart(a[name], b[name]) for name in a) for a, b in zip(one, other, strict=True)]


def _apart(x: object, y: object) -> float:
    if x == y:
        return 0.0
    if not (isinstance(x, float) and isinstance(y, float)):
        return math.inf
    return abs(x - y) / max(1.0, abs(x), abs(y))


def seconds(manifest: Manifest) -> float:
    """What the table took when it was made."""
    record = json.loads(provenance_path(table_path(manifest, "cpu")).read_text(encoding="utf-8"))
    return float(record["wall_seconds"])


def chosen(manifest: Manifest) -> list[tuple[Manifest, Point, bool]]:
    """The points of a table that are made again, and whether with two threads too."""
    points = points_of(manifest, provenance.begin(manifest, "cpu"), Path())
    took = seconds(manifest)
    some = points if took <= WHOLE else points[-1:]
    return [(manifest, point, took <= WHOLE_WITH_TWO or point is points[-1]) for point in some]


def trials(quick: bool, seed: int) -> Iterator[Trial]:
    """Three lines: bytes with one thread, numbers with two, of what is computed and of what is trained.

    The quick form takes one point and leaves out the second time: `make test` makes each quick table again
    and compares it with the committed file.
    """
    named = [read_manifest(name) for name in ([QUICK] if quick else names())]
    manifests = [manifest for manifest in named if manifest.deterministic and manifest.needs is None]
    todo = [
        one
        for manifest in sorted(manifests, key=seconds, reverse=True)  # the long ones first: no core waits
        for one in chosen(manifest)[-1 if quick else 0 :]
    ]

    def made(one: tuple[Manifest, Point, bool]) -> Again:
        manifest, point, two = one
        with tempfile.TemporaryDirectory() as folder:
            return again(manifest, point, Path(folder), same=not quick, two=two)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = list(pool.map(made, todo))
    twice = [one for one in found if one.same is not None]
    if twice:
        other = [f"{one.name}: other bytes the second time" for one in twice if not one.same]
        yield Trial("points of tables, made twice: the same bytes", len(twice), len(other), said=tuple(other))
    for what, tolerance, trained in (
        (f"points of tables, with two threads: the same to {EXACT:g}", EXACT, False),
        (
            f"points of tables that train a network, with two threads: half of the lines to {LOOSE:g}",
            LOOSE,
            True,
        ),
    ):
        lines = {
            one.name: sorted(one.distances)
            for one in found
            if one.distances is not None and (one.name.split()[0] in TRAINED) == trained
        }
        far = {name: apart[(len(apart) - 1) // 2 if trained else -1] for name, apart in lines.items()}
        beyond = [name for name in far if not far[name] <= tolerance]
        shown = dict.fromkeys([*beyond, *sorted(lines, key=lambda name: lines[name][-1])[-1:]])
        said = tuple(
            f"{name}: {sum(not x <= tolerance for x in lines[name])} of {len(lines[name])} lines beyond, "
            f"the farthest {lines[name][-1]:.3g} apart"
            for name in shown  # what is beyond, and the farthest: whether the tolerance is a sharp one
        )
        if lines:
            yield Trial(what, len(lines), len(beyond), said=said)
