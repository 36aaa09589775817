"""Runs of a toy table, to be killed, or to find a full disk: on this machine and on workers."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from tests.reliability.killing import Whole, Work, alive, ended, fresh, repeat, still_running
from tests.reliability.trying import Trial
from tests.support.tables.clusters import Started, count, started, wait_until
from tests.support.tables.toy import write_project

STABLE = ("digests", "grid", "package_files", "parameters", "profile", "versions")
OLDER = "the table of an earlier run\n"
# what `python -m kl_book table run` does, without the two seconds in which it imports torch
RUN = """
import json, sys
from kl_book import tables
try:
    tables.run("toy", progress=print, **json.loads(sys.argv[1]))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


class Table(Work):
    """A run of the toy table, of which an older one is there."""

    def __init__(self, jobs: int, points: int, **options: object) -> None:
        self.what = f"table run, {points} points, {jobs} at a time"
        self.jobs, self.points, self.options = jobs, points, options

    def prepare(self, folder: Path) -> None:
        project = write_project(folder / "project")
        manifest = project / "tables/toy/manifest.yml"
        text = manifest.read_text().replace("{scale: 2.0}", "{scale: 2.0, log: ../../log}")
        manifest.write_text(text.replace("method: [b, a]", "method: [b]") if self.points == 2 else text)
        (project / "tables/toy/table.csv").write_text(OLDER)

    def command(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", RUN, json.dumps({"jobs": self.jobs, **self.options})]

    def result(self, folder: Path) -> dict[str, bytes]:
        """The table, and of its provenance what is the same for each run."""
        found = {}
        for path in (folder / "project/tables/toy").iterdir():
            found[path.name] = content = path.read_bytes()
            if path.name == "provenance.json":
                try:
                    record = json.loads(content)
                except ValueError:
                    continue
                found[path.name] = json.dumps({key: record.get(key) for key in STABLE}).encode()
        return found

    def finished(self, folder: Path) -> set[str]:
        """The points whose rows are kept."""
        found = set()
        for rows in (folder / "project/_build").glob("tables/toy/cpu/*/rows.csv"):
            executed = json.loads(rows.with_name("executed.ipynb").read_text())
            given = executed["metadata"]["papermill"]["parameters"]
            found.add(f"{given['method']}{given['seed']}")
        return found


# -- two runs at once ----------------------------------------------------------------------------------------


def together(
    what: str, work: Work, base: Path, whole: Whole, times: int, draw: random.Random, *, kill: bool = False
) -> Trial:
    """Two runs of the same work at once: both end well, nothing is done twice, the result is the same.

    With `kill` the first one is killed at some moment when the second one is there.
    """
    failed, lost, said = 0, 0, list[str]()
    for number in range(1, times + 1):
        with fresh(work, base) as folder:
            wrong, gone, since = [], [], time.monotonic()
            runs = [work.start(folder, {})]
            time.sleep(draw.uniform(0, whole.seconds / 2))
            runs.append(work.start(folder, {}))
            kept: set[str] = set()
            if kill:
                runs[0].wait(draw.uniform(0, whole.seconds / 2))
                kept = work.finished(folder)
                family = alive(runs[0].process.pid or 0)
                if family:
                    family[0].kill()
            ends = [ended(run, since) for run in runs]
            for end in ends[kill:]:
                if end.status != 0:
                    wrong.append(f"one of them ended with {end.status}: {end.said[-1000:]}")
            if work.result(folder) != whole.result:
                wrong.append(f"another result: {sorted(work.result(folder))}")
            gone += still_running([], folder)
            times_begun = Counter(work.begun(folder, ""))
            twice = {piece for piece, n in times_begun.items() if n > 1 and (piece in kept or not kill)}
            gone += [f"{piece} was done twice" for piece in sorted(twice)]
            gone += [f"left behind: {name}" for name in sorted(work.files(folder) - whole.files)[:5]]
            failed, lost = failed + bool(wrong), lost + bool(gone)
            said += [f"{what}, number {number}: {text}" for text in [*wrong, *gone]]
    return Trial(what, times, failed, lost, tuple(said))


# -- workers -------------------------------------------------------------------------------------------------


def workers_killed(base: Path, whole: Whole, times: int, draw: random.Random) -> Trial:
    """Of two dask workers one is killed at some moment: the table is made, only its point is begun again."""
    what = "table run on two dask workers over TCP, one killed"
    failed, lost, said = 0, 0, list[str]()
    (base / "cluster").mkdir()
    with started(base / "cluster", 2) as found:
        work = Table(2, 4, backend="dask", address=found.address)
        with fresh(work, base) as folder:
            first = repeat(work, folder)
            if first.status != 0:
                raise RuntimeError(f"it does not even work undisturbed: {first.said}")
        for number in range(1, times + 1):
            with fresh(work, base) as folder:
                wrong, gone, since = [], [], time.monotonic()
                run = work.start(folder, {})
                run.wait(draw.uniform(0, first.seconds))
                victim = draw.choice([p for p in found.processes[1:] if p.poll() is None])
                family, kept = alive(victim.pid), work.finished(folder)
                victim.kill()
                victim.wait()
                end = ended(run, since)
                if end.status != 0:
                    wrong.append(f"it ended with {end.status}: {end.said[-1500:]}")
                elif work.result(folder) != whole.result:
                    wrong.append(f"another result: {sorted(work.result(folder))}")
                begun = Counter(work.begun(folder, ""))
                if again := {p for p, n in begun.items() if n > 1 and p in kept}:
                    gone.append(f"finished and done again: {sorted(again)}")
                if sum(begun.values()) > len(begun) + 1:
                    gone.append(f"begun {dict(begun)}, where one worker was lost with one point")
                gone += still_running(family, folder)
                found.worker()
                wait_until(lambda: count(found.address) == 2, "the next worker has come")
                if number == times:  # the workers that came later have swept
                    gone += _left_by_workers(work, folder, found)
                failed, lost = failed + bool(wrong), lost + bool(gone)
                said += [f"{what}, number {number}: {text}" for text in [*wrong, *gone]]
    return Trial(what, times, failed, lost, tuple(said))


def _left_by_workers(work: Table, folder: Path, found: Started) -> list[str]:
    """Run the table once more from the beginning: after it, no folder of a lost worker is left."""
    end = repeat(Table(2, 4, fresh=True, **work.options), folder)
    left = [path.name for path in found.temporary.glob("kl-*")]
    problems = [] if end.status == 0 else [f"all of it again ended with {end.status}: {end.said[-1000:]}"]
    return problems + [f"left behind by a lost worker: {name}" for name in left]
