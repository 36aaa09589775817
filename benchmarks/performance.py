"""Exact KL at vocabulary scale against its peers: the rows of the table `performance`.

    python -m benchmarks.performance --suite smoke            # seconds: tiny sizes, one process
    python -m benchmarks.performance --suite cpu              # minutes: what `make bench` runs
    python -m benchmarks.performance --suite gpu              # needs CUDA; the same variants, in its memory

Every work and allocator gets a fresh process, and every peak of memory one too; those of eager variants are
forks of one process that has imported the peers and done nothing else. `warm` is glibc told, in the
environment of the process, to keep the memory that it was given, as a training loop with another allocator
would. With --out the rows go to a JSON file, in any case a summary to the terminal.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest import mock

import pandas as pd
import torch

from benchmarks import goals, measure
from benchmarks.measure import Case, Row
from benchmarks.peers import ROOT, VARIANTS

VOCAB = 151_936
WARM = {
    "MALLOC_TOP_PAD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_MMAP_THRESHOLD_": "100000000000",
}
Job = dict[str, object]
IMPORTS = [  # what takes seconds, done once for all peaks of memory; a peer that is not here is passed over
    *("pandas", "torch", "benchmarks.measure", "benchmarks.performance"),
    *("trl.experimental.gkd.gkd_trainer", "trl.trainer.utils", "trl.kernels.chunked_divergence"),
]
COLUMNS = (
    *("work", "dtype", "allocator", "tokens", "vocab", "hidden", "variant", "rounds", "milliseconds"),
    *("best_milliseconds", "times_faster", "of_floor", "extra_megabytes", "extra_of_logits"),
    *("gradient_error", "figure", "unit", "device"),
)
SHOWN = (*COLUMNS[:7], "milliseconds", *COLUMNS[10:17])
OURS = ("ours, safe", "ours, in place", "ours, fused")
FEW = ("naive", "torch.compile", *OURS, "roof")
EAGER = ("naive", *OURS, "roof")
BENCH = tuple(name for name in VARIANTS["reverse_kl"] if name != "ours, compiled")


def cpu_cases() -> list[Case]:
    """Both dtypes and allocators at one size; other works; time against vocabulary and tokens."""
    whole = {"vocab": VOCAB, "tokens": 512, "variants": BENCH}
    half = {"vocab": VOCAB, "tokens": 256, "rounds": 5}
    cases = [Case("reverse_kl", "float32", "default", rounds=5, **whole)]
    cases += [Case("reverse_kl", "float32", "warm", rounds=9, **whole)]
    cases += [Case("reverse_kl", "bfloat16", a, rounds=5, **whole) for a in ("default", "warm")]
    cases += [Case(work, variants=EAGER, **half) for work in ("forward_kl", "jensen_shannon")]
    cases += [Case("logp", "float32", a, **half) for a in ("default", "warm")]
    cases += [Case("logp", "bfloat16", **half)]
    cases += [Case("top_k", d, **half) for d in ("float32", "bfloat16")]
    cases += [Case("linear_kl", d, **{**half, "rounds": 3}, hidden=896) for d in ("float32", "bfloat16")]
    sweep = [(128, v) for v in (8_192, 32_768)] + [(n, VOCAB) for n in (32, 128, 1024)]
    return cases + [Case("reverse_kl", tokens=n, vocab=v, variants=FEW, rounds=3) for n, v in sweep]


def gpu_cases() -> list[Case]:
    """The same on a GPU, at the size of a training step."""
    whole = {"vocab": VOCAB, "tokens": 8192, "rounds": 9, "device": "cuda"}
    cases = [Case("reverse_kl", d, **whole) for d in ("bfloat16", "float32")]
    works = ("forward_kl", "jensen_shannon", "logp", "top_k")
    cases += [Case(work, "bfloat16", **whole) for work in works]
    cases += [Case("linear_kl", "bfloat16", **{**whole, "rounds": 5}, hidden=4096)]
    sizes = [(8192, 32_768), (8192, 262_144), (512, VOCAB), (2048, VOCAB)]
    variants = (*FEW, "ours, compiled")
    return cases + [
        Case("reverse_kl", "bfloat16", **{**whole, "tokens": n, "vocab": v}, variants=variants)
        for n, v in sizes
    ]


def smoke_cases(device: str = "cpu") -> list[Case]:
    """Every work, tiny, without what is slow to import or to compile."""
    slow = [n for vs in VARIANTS.values() for n, v in vs.items() if v.compiled or v.needs]
    cases = [Case("reverse_kl", "bfloat16", device=device), *(Case(work, device=device) for work in VARIANTS)]
    cases = [case._replace(variants=tuple(n for n in VARIANTS[case.work] if n not in slow)) for case in cases]
    return [case._replace(hidden=16 if case.work in measure.LINEAR else 0) for case in cases]


# -- processes -----------------------------------------------------------------------------------------------


def variables(job: Job, threads: int, cache: str) -> dict[str, str]:
    """The environment of a job's process."""
    case = Case(**job["case"]) if "case" in job else None  # type: ignore[arg-type]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("MALLOC_")}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    environment |= {"TORCHINDUCTOR_CACHE_DIR": cache, "TRL_EXPERIMENTAL_SILENCE": "1"}
    return environment | (WARM if case and case.allocator == "warm" else {})


def child(job: Job, threads: int, cache: str) -> list[Row]:
    """Run one job in a fresh process; RuntimeError with the end of what it said if it fails."""
    command = [sys.executable, "-m", "benchmarks.performance", "--job", json.dumps(job)]
    environment = variables(job, threads, cache)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{job} failed:\n{done.stderr[-3000:]}")
    for line in done.stderr.splitlines():
        if measure.LEFT_OUT in line:
            print(line, file=sys.stderr, flush=True)
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def compiles(job: Job) -> bool:
    """Does the variant of a job compile itself first?"""
    case = Case(**job["case"])  # type: ignore[arg-type]
    variant = VARIANTS[case.work][str(job["variant"])]
    return variant.compiled or variant.large


def peaks(jobs: list[Job], threads: int, cache: str) -> Iterator[list[Row]]:
    """Run jobs of memory, two at a time: eager ones in forks, compiled ones in processes from scratch."""
    if not jobs:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)

    def run(job: Job) -> list[Row]:
        return child(job, threads, cache) if compiles(job) else fork(context, job)

    environment = variables(jobs[0], threads, cache)  # the process that forks takes it over
    with mock.patch.dict(os.environ, environment, clear=True), ThreadPoolExecutor(2) as pool:
        yield from pool.map(run, jobs)


def fork(context: ForkServerContext, job: Job) -> list[Row]:
    """Run one job in a fork; RuntimeError when it ends without an answer."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(job, sender))
    process.start()
    sender.close()
    try:
        rows: list[Row] = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{job} failed with status {process.exitcode}, see above") from None
    process.join()
    return rows


def _answer(job: Job, sender: Connection) -> None:
    sender.send(do(job))


def do(job: Job) -> list[Row]:
    """What a child does."""
    if job["do"] == "machine":
        return measure.machine(str(job["device"]), *job["sizes"])  # type: ignore[misc]
    if job["do"] == "moments":
        return moments_rows(*job["sizes"])  # type: ignore[misc]
    case = Case(**job["case"])  # type: ignore[arg-type]
    if job["do"] == "memory":
        return measure.memories(case, [str(job["variant"])])
    rows = measure.times(case)
    if case.dtype == "bfloat16" and case.work not in measure.LINEAR:
        rows.append(measure.rounding(case))
    if case.device == "cuda":  # the peak is counted by the allocator: no process of its own needed
        rows += measure.memories(case, case.chosen())
    return rows


def moments_rows(vocab: int, tokens: int, rounds: int) -> list[Row]:
    """Exact moments of every estimator (`benchmarks.moments`) in the columns of the table."""
    from benchmarks import moments

    rows = []
    for found in moments.rows(vocab=vocab, tokens=tokens, rounds=rounds):
        base = Case("moments", "float32", "default", found["tokens"], found["vocab"]).base()
        rows.append({**base, "variant": found["name"], "rounds": rounds, **_moments(found)})
    return rows


def _moments(found: Row) -> Row:
    return {"milliseconds": found["milliseconds"], "times_faster": found["times_faster"]}


def merge(rows: Iterable[Row], device: str) -> list[Row]:
    """One row per variant and size, with all columns; time and memory were measured apart."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in COLUMNS[:7])
        found[key] = {**dict.fromkeys(COLUMNS), "device": device, **found.get(key, {}), **row}
    return [{name: row[name] for name in COLUMNS} for row in found.values()]


def jobs_of(suite: str, works: Iterable[str] = ()) -> tuple[list[Job], list[Job]]:
    """What a suite does one after the other (times), and what may run side by side (memory).

    With `works`, only these.
    """
    device, works = "cuda" if suite == "gpu" else "cpu", tuple(works) or (*VARIANTS, "moments")
    cases = [case for case in (gpu_cases() if suite == "gpu" else cpu_cases()) if case.work in works]
    sizes = [2000, 8192, 9] if suite == "gpu" else [400, 2048, 5]
    timed: list[Job] = [{"do": "machine", "device": device, "sizes": sizes}]
    timed += [{"do": "times", "case": case._asdict()} for case in cases]
    if suite == "gpu":
        return timed, []
    if "moments" in works:
        timed.append({"do": "moments", "sizes": [VOCAB, 8, 5]})
    alone = [
        {"do": "memory", "case": case._asdict(), "variant": name}
        for case in cases
        if case.allocator == "default"
        for name in case.chosen()
        if name != "roof"
    ]
    return timed, alone


def smoke(device: str = "cpu") -> list[Row]:
    """All of it, tiny, in this process."""
    rows = measure.machine(device, 1, 64, 1)
    for case in smoke_cases(device):
        rows += measure.times(case)
        rows += measure.memories(case, case.chosen())
        if case.dtype == "bfloat16" and case.work not in measure.LINEAR:
            rows.append(measure.rounding(case))
    return merge(rows + moments_rows(64, 2, 1), measure.device_name(device))


def suite_rows(suite: str, threads: int, works: Iterable[str] = ()) -> list[Row]:
    """The rows of a suite; progress goes to standard error."""
    if suite == "smoke":
        return smoke()
    timed, alone = jobs_of(suite, works)
    with tempfile.TemporaryDirectory() as cache:
        rows = []
        for number, job in enumerate(timed, 1):
            rows += child(job, threads, cache)
            print(f"[{number}/{len(timed)}] {job}", file=sys.stderr, flush=True)
        for more in peaks(alone, threads, cache):
            rows += more
    torch.set_num_threads(threads)
    return merge(rows, measure.device_name("cuda" if suite == "gpu" else "cpu"))


def main() -> None:
    """Measure a suite, or do one job of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance")
    parser.add_argument("--suite", choices=("smoke", "cpu", "gpu"), default="smoke")
    parser.add_argument("--works", nargs="*", default=(), choices=(*VARIANTS, "moments"), help="only these")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="a file for the rows, as JSON")
    parser.add_argument("--job", type=json.loads, help="for its own processes")
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(do(arguments.job)))
        return
    rows = suite_rows(arguments.suite, arguments.threads, arguments.works)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows), encoding="utf-8")
    print(pd.DataFrame(rows)[list(SHOWN)].to_string(index=False, na_rep="", float_format="{:.4g}".format))
    goals.report(rows, "gpu" if arguments.suite == "gpu" else "cpu")


if __name__ == "__main__":
    main()
