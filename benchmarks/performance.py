"""Exact KL at vocabulary scale against its peers: the rows of the table `performance`.

    python -m benchmarks.performance --suite smoke            # seconds: tiny sizes, one process
    python -m benchmarks.performance --suite cpu              # minutes: what `make bench` runs
    python -m benchmarks.performance --suite gpu              # needs CUDA; the same variants, in its memory
    python -m benchmarks.performance --suite gpu_short        # in a few minutes: see `benchmarks.gpu`
    python -m benchmarks.performance --suite cpu --groups log-probs top-k

Every group of works (`benchmarks.suites`) gets a fresh process per number of threads and allocator. `warm` is
glibc told, in the environment of the process, to keep the memory that it was given, as a training loop with
another allocator would. With --out the rows go to a JSON file after
every case, and a summary to the terminal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from benchmarks import goals, measure, suites, training_step
from benchmarks.measure import KEY, Case, Row
from benchmarks.peers import ROOT
from benchmarks.training_step import StepSizes
from kl_book.speed_goals import CPU, GPU

WARM = {
    "MALLOC_TOP_PAD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_MMAP_THRESHOLD_": "100000000000",
}
Job = dict[str, object]
ROWS = "rows: "  # before what a child's process prints for this one
COLUMNS = (
    *(*KEY, "rounds", "milliseconds", "best_milliseconds", "times_faster", "of_floor"),
    *("extra_megabytes", "extra_of_logits", "gradient_error", "figure", "unit", "device"),
)
SHOWN = tuple(name for name in COLUMNS if name not in ("rounds", "best_milliseconds", "device"))


def variables(threads: int, allocator: str) -> dict[str, str]:
    """The environment of a process."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("MALLOC_")}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    environment["TRL_EXPERIMENTAL_SILENCE"] = "1"
    return environment | (WARM if allocator == "warm" else {})


def child(job: Job, environment: dict[str, str]) -> Iterator[Row]:
    """Yield the rows of one job, done in a fresh process, which reports its progress on standard error.

    Raises:
        RuntimeError: The process failed.
    """
    command = [sys.executable, "-m", "benchmarks.performance", "--job", json.dumps(job)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith(ROWS):  # libraries print too
                yield from json.loads(line.removeprefix(ROWS))
    if process.returncode:
        raise RuntimeError(f"{job} failed, see above")


def do(job: Job) -> Iterator[list[Row]]:
    """Yield what a child measures of a job: "machine", "moments", "training_step" or "cases"."""
    if "machine" in job:
        yield measure.machine(*job["machine"])  # type: ignore[misc]
    elif "moments" in job:
        yield moments_rows(*job["moments"])  # type: ignore[misc]
    elif "training_step" in job:
        yield training_rows(StepSizes(**job["training_step"]))  # type: ignore[arg-type]
    else:
        for fields in job["cases"]:  # type: ignore[attr-defined]
            case, begin = Case(**fields), time.perf_counter()
            yield measure.measured(case)
            seconds = time.perf_counter() - begin
            print(f"  {seconds:5.1f} s  {case.base()}", file=sys.stderr, flush=True)


def moments_rows(vocab: int, tokens: int, rounds: int) -> list[Row]:
    """Exact moments of every estimator (`benchmarks.moments`) in the columns of the table."""
    from benchmarks import moments

    rows = []
    for found in moments.rows(vocab=vocab, tokens=tokens, rounds=rounds):
        base = Case("moments", tokens=found["tokens"], vocab=found["vocab"]).base()
        kept = {name: found[name] for name in ("milliseconds", "times_faster")}
        rows.append({**base, "variant": found["name"], "rounds": rounds, **kept})
    return rows


def training_rows(sizes: StepSizes) -> list[Row]:
    """Whole training steps (`benchmarks.training_step`) in the columns of the table."""
    tokens = sizes.batch * sizes.length
    rows = []
    for found in training_step.rows(sizes):
        base = Case(
            "training_step", sizes.dtype, 2, "default", tokens, found["vocab"], found["hidden"]
        ).base()
        kept = {"milliseconds": found["milliseconds"], "times_faster": 1 / found["of_sampled"]}
        kept["extra_megabytes"] = found["megabytes"]
        rows.append({**base, "variant": found["loss"], "rounds": sizes.rounds, **kept})
    return rows


def groups_of(suite: str) -> tuple[str, ...]:
    """The names of what can be measured by itself."""
    return ("machine", *suites.SUITES[suite], *(("moments", "training step") if suite == "cpu" else ()))


def jobs_of(suite: str, groups: Iterable[str] = ()) -> dict[str, tuple[Job, int, str]]:
    """What some groups of a suite do (none: all), by name, with threads and allocator of their processes."""
    wanted = tuple(groups) or groups_of(suite)
    machine = ["cuda", 2000, 8192, 9] if suite.startswith("gpu") else ["cpu", 400, 1024, 5]
    found: dict[str, tuple[Job, int, str]] = {"machine": ({"machine": machine}, 2, "default")}
    for name, cases in suites.batches(suite, wanted).items():
        job: Job = {"cases": [case._asdict() for case in cases]}
        found[name] = (job, cases[0].threads, cases[0].allocator)
    found["moments"] = ({"moments": [suites.VOCAB, 8, 5]}, 2, "default")
    found["training step"] = ({"training_step": StepSizes(rounds=3)._asdict()}, 2, "default")
    return {name: job for name, job in found.items() if name.partition(",")[0] in wanted}


def suite_rows(suite: str, groups: Iterable[str] = ()) -> Iterator[Row]:
    """Yield the rows of a suite, all columns; progress goes to standard error."""
    device = "cuda" if suite.startswith("gpu") else "cpu"
    whole = dict.fromkeys(COLUMNS) | {"device": measure.device_name(device)}
    if suite == "smoke":
        cases = [case._asdict() for case in suites.batches("smoke")["all, 1 threads, default"]]
        jobs: tuple[Job, ...] = ({"machine": [device, 1, 64, 1]}, {"moments": [64, 2, 1]}, {"cases": cases})
        yield from (whole | row for job in jobs for rows in do(job) for row in rows)
        return
    every = jobs_of(suite, groups)
    for number, (name, (job, threads, allocator)) in enumerate(every.items(), 1):
        print(f"[{number}/{len(every)}] {name}", file=sys.stderr, flush=True)
        yield from (whole | row for row in child(job, variables(threads, allocator)))


def main() -> None:
    """Measure a suite, or do one job of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance")
    parser.add_argument("--suite", choices=tuple(suites.SUITES), default="smoke")
    parser.add_argument("--groups", nargs="*", default=(), help=f"only these: {', '.join(groups_of('cpu'))}")
    parser.add_argument("--out", type=Path, help="a file for the rows, as JSON")
    parser.add_argument("--job", type=json.loads, help="for its own processes")
    arguments = parser.parse_args()
    if arguments.job:
        for part in do(arguments.job):
            print(f"{ROWS}{json.dumps(part)}", flush=True)
        return
    if unknown := set(arguments.groups) - set(groups_of(arguments.suite)):
        parser.error(f"no groups {sorted(unknown)}, expected some of {', '.join(groups_of(arguments.suite))}")
    rows = []
    for row in suite_rows(arguments.suite, arguments.groups):
        rows.append(row)
        if arguments.out:
            arguments.out.write_text(json.dumps(rows), encoding="utf-8")
    print(pd.DataFrame(rows)[list(SHOWN)].to_string(index=False, na_rep="", float_format="{:.4g}".format))
    if at := {"cpu": CPU, "gpu": GPU}.get(arguments.suite):
        goals.report(rows, at)


if __name__ == "__main__":
    main()
