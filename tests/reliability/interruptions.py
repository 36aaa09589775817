"""Kill what takes a while, fill the disk under it, start it twice: is anything lost?

    python -m tests.reliability.interruptions [--quick] [--seed 0] [--only SUBJECT ...]

Each time a fresh copy is disturbed, and then repeated. The repetition must end well, with the bytes of an
undisturbed run; else it counts as failed. As lost counts what was half-written, finished and done again,
still running after the kill, left behind, or explained by a traceback.

Processes are killed (SIGKILL) at moments drawn over the time of an undisturbed run, and at a write drawn
among all its writes, half of which is done: moments seldom hit the short time in which files are moved. A
disk is full by a limit of the length of a file (RLIMIT_FSIZE), or by ENOSPC at a drawn write and ever after.

The quick form leaves out what other tests of `make test` do: a run of a table that is killed
(tests/book/tables/test_runner_interruption.py), a lost worker of a cluster
(tests/book/tables/test_cluster.py), what a killed build leaves (tests/pages/test_cache.py), and pretraining
that is killed, or that two do at once (tests/llm/test_pretraining.py).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.reliability.building import Book
from tests.reliability.killing import (
    BELOW,
    GROUP,
    IT,
    Disturbance,
    full,
    killed,
    killed_at_a_write,
    limited,
    trial,
    undisturbed,
)
from tests.reliability.making import Table, together, workers_killed
from tests.reliability.trying import Trial

KILLS: list[Disturbance] = [killed(IT), killed(GROUP), killed(BELOW), killed_at_a_write]


def table(base: Path, draw: random.Random, *, quick: bool) -> Iterator[Trial]:
    """`python -m kl_book table run` of two points."""
    work = Table(2 if quick else 1, 2)
    whole = undisturbed(work, base)
    if not quick:
        kills = [*2 * KILLS, *4 * [killed_at_a_write]]
        yield trial(f"{work.what}, killed", work, base, whole, kills, draw)
    fills = [full] if quick else [*8 * [full], *4 * [limited]]
    yield trial(f"{work.what}, a full disk", work, base, whole, fills, draw)
    if quick:
        yield together(f"{work.what}, two runs, the first killed", work, base, whole, 1, draw, kill=True)


def grid(base: Path, draw: random.Random, *, quick: bool) -> Iterator[Trial]:
    """The same with four points, two at a time, also by two runs at once and by two workers."""
    if quick:
        return
    work = Table(2, 4)
    whole = undisturbed(work, base)
    kills = [*3 * KILLS]
    yield trial(f"{work.what}, killed", work, base, whole, kills, draw)
    yield together(f"{work.what}, two runs at once", work, base, whole, 3, draw)
    yield together(f"{work.what}, two runs, the first killed", work, base, whole, 3, draw, kill=True)
    yield workers_killed(base, whole, 4, draw)


def training(base: Path, draw: random.Random, *, quick: bool) -> Iterator[Trial]:
    """A training run with checkpoints."""
    from tests.reliability.learning import Training

    work = Training()
    whole = undisturbed(work, base)
    kills = [killed_at_a_write] if quick else [*6 * [killed()], *14 * [killed_at_a_write]]
    yield trial(f"{work.what}, killed", work, base, whole, kills, draw)
    fills = [limited] if quick else [*6 * [full], *6 * [limited]]
    yield trial(f"{work.what}, a full disk", work, base, whole, fills, draw)


def pretraining(base: Path, draw: random.Random, *, quick: bool) -> Iterator[Trial]:
    """Pretraining the embedded model."""
    if quick:
        return
    from tests.reliability.learning import Pretraining

    work = Pretraining()
    whole = undisturbed(work, base)
    kills = [*4 * [killed()], *10 * [killed_at_a_write]]
    yield trial(f"{work.what}, killed", work, base, whole, kills, draw)
    yield trial(f"{work.what}, a full disk", work, base, whole, [*5 * [full], *5 * [limited]], draw)
    yield together(f"{work.what}, two at once", work, base, whole, 3, draw)


def book(base: Path, draw: random.Random, *, quick: bool) -> Iterator[Trial]:
    """Builds of a toy book."""
    for work in () if quick else (Book(base, built=False), Book(base, built=True)):
        whole = undisturbed(work, base)
        kills = [killed(GROUP), killed(), *2 * [killed_at_a_write]]
        yield trial(f"{work.what}, killed", work, base, whole, kills, draw)


SUBJECTS: dict[str, Callable[..., Iterator[Trial]]] = {
    "table": table,
    "grid": grid,
    "training": training,
    "pretraining": pretraining,
    "book": book,
}


def trials(quick: bool, seed: int, only: tuple[str, ...] = tuple(SUBJECTS)) -> Iterator[Trial]:
    """Try everything; each subject draws by itself, so that one alone does what it does among all."""
    for name in only:
        with tempfile.TemporaryDirectory(prefix="kill-", ignore_cleanup_errors=True) as base:
            yield from SUBJECTS[name](Path(base), random.Random(f"{name} {seed}"), quick=quick)


def main(arguments: list[str]) -> int:
    """Print a line per trial; 0 when nothing failed and nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.interruptions")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=SUBJECTS, nargs="+", default=tuple(SUBJECTS))
    chosen = parser.parse_args(arguments)
    wrong, since, start = 0, time.monotonic(), time.monotonic()
    for found in trials(chosen.quick, chosen.seed, tuple(chosen.only)):
        now = time.monotonic()
        counts = f"{found.tried:>3} tried  {found.failed:>2} failed  {found.lost:>2} lost"
        print(f"{found.what:<74}{counts}{now - since:>7.0f} s", flush=True)
        for line in found.said:
            print(f"    {line}", flush=True)
        wrong, since = wrong + found.failed + (found.lost or 0), now
    print(f"{time.monotonic() - start:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
