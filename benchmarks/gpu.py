"""Measure what needs a GPU, in eleven minutes: `make gpu`.

    python -m benchmarks.gpu --plan       print the tasks and their limits, and run nothing
    python -m benchmarks.gpu --step b     run one step instead of all
    python -m benchmarks.gpu --small      run every task at a tiny size on a processor

Every task is a process with a limit of its own and writes its file while it runs, so a failure or an
interruption loses only what was not measured yet. The results are eight small files in `_build/gpu`, or in
the folder that --out names; `log.txt` has what the tasks print, `record.json` the card, the versions and the
minutes. Tables of a real model take the small model of the project where the real one is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple

import pandas as pd
import torch

from kl_book import tables
from kl_book.tables.manifest import read_manifest
from kl_book.tables.needs import lacking
from kl_book.tables.provenance import git_state, gpu_name

ROOT = Path(__file__).resolve().parents[1]
COMMIT = (
    ROOT / ".gpu" / "1" / "commit"
)  # of `make gpu-bundle`, for a copy of the project without its repository
LOG, RECORD = "log.txt", "record.json"
VERSIONS = ("triton", "transformers", "trl", "liger-kernel", "numpy")


class Task(NamedTuple):
    """One process of a step, which is killed after `minutes`.

    Attributes:
        step: a, b, c or d.
        title: Of the plan.
        minutes: Its limit.
        file: The name of its result; empty where the log is the result.
        command: Arguments for Python, without the result's path.
        full: Further arguments on a GPU.
        small: Further arguments at a tiny size on a processor.
    """

    step: str
    title: str
    minutes: float
    file: str
    command: tuple[str, ...]
    full: tuple[str, ...]
    small: tuple[str, ...]

    def arguments(self, out: Path, *, small: bool) -> list[str]:
        """Return the arguments for Python."""
        result = ("--out", str(out / self.file)) if self.file else ()
        return [*self.command, *result, *(self.small if small else self.full)]


def marked() -> tuple[str, ...]:
    """Return the files of tests that mark one for a GPU."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple(str(f.relative_to(ROOT)) for f in files if "mark.gpu" in f.read_text(encoding="utf-8"))


_TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-n", "8", *marked())
_SPEED, _TABLE = ("-m", "benchmarks.performance"), ("-m", "benchmarks.gpu")
_SHORT, _SMOKE = ("--suite", "gpu_short", "--groups"), ("--suite", "smoke")
_MONITOR = ("-m", "benchmarks.monitoring")
_STEPS = ("--steps", "6", "--completions", "16", "--length", "128")
_TINY = ("--tiny", "--steps", "1", "--completions", "4", "--length", "3")
_GPU, _CPU = ("--profile", "gpu_short", "--tables"), ("--profile", "smoke", "--tables")
TASKS = (
    Task("a", "tests marked gpu", 1.5, "", _TESTS, (), ("--collect-only",)),
    Task("a", "gradients against float64", 0.75, "numerics.json", _SPEED, (*_SHORT, "numerics"), _SMOKE),
    Task(
        *("b", "kernels against torch.compile, Liger and copies", 2.75, "kernels.json", _SPEED),
        (*_SHORT, "machine", "reverse KL", "hidden states"),
        _SMOKE,
    ),
    Task(
        *("c", "notebook of RL with a KL term", 2.5, "rl.csv", _TABLE),
        (*_GPU, "real_rl", "llm_rl"),
        (*_CPU, "llm_rl"),
    ),
    Task(
        *("c", "notebook of distillation", 1.5, "distillation.csv", _TABLE),
        (*_GPU, "real_distillation", "llm_distillation"),
        (*_CPU, "llm_distillation"),
    ),
    Task(
        *("c", "notebook of the kernels", 1.0, "performance.csv", _TABLE),
        (*_GPU, "performance"),
        (*_CPU, "performance"),
    ),
    Task("d", "the monitor's share of a step", 1.0, "monitor.json", _MONITOR, _STEPS, _TINY),
)


def plan(tasks: Sequence[Task]) -> str:
    """Return the tasks with their limits, a line each."""
    lines = [f"{task.step}  {task.title:<50}{task.minutes:>6.2f} min  {task.file}" for task in tasks]
    return "\n".join([*lines, f"{'together at most':<53}{sum(task.minutes for task in tasks):>5.1f} min"])


def machine() -> dict[str, Any]:
    """Return the card, its driver, the versions and the commit."""
    found: dict[str, Any] = {"gpu": gpu_name(), "driver": None, "python": sys.version.split()[0]}
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["driver"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pass  # no card, or a container without the program
    found["torch"] = torch.__version__
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    commit, found["dirty"] = git_state(ROOT)
    found["commit"] = commit or (COMMIT.read_text(encoding="utf-8").strip() if COMMIT.is_file() else None)
    return found


def process(arguments: Sequence[str], seconds: float, log: IO[str]) -> str:
    """Run Python in a process group of its own; return "done", "failed" or "out of time"."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, *arguments]
    started = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    try:
        return "failed" if started.wait(seconds) else "done"
    except subprocess.TimeoutExpired:
        return "out of time"
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)  # with the kernels of notebooks and compilers
            started.wait()


def measure(tasks: Sequence[Task], out: Path, *, small: bool) -> bool:
    """Run tasks one after the other and record each as soon as it ends; return whether all were done.

    The record keeps the tasks of earlier runs into the same folder that are not repeated.
    """
    out.mkdir(parents=True, exist_ok=True)
    before = (
        json.loads((out / RECORD).read_text(encoding="utf-8"))["tasks"] if (out / RECORD).is_file() else []
    )
    titles = {task.title for task in tasks}
    earlier = [row for row in before if row["title"] not in titles]
    record: dict[str, Any] = {**machine(), "small": small, "tasks": earlier}
    for task in tasks:
        print(f"{task.step}  {task.title} ...", end=" ", flush=True)
        begin = time.monotonic()
        with (out / LOG).open("a", encoding="utf-8") as log:
            print(f"\n==> {task.step}, {task.title}", file=log, flush=True)
            status = process(task.arguments(out, small=small), 60 * task.minutes, log)
        minutes = round((time.monotonic() - begin) / 60, 2)
        print(f"{status}, {minutes} of {task.minutes} minutes", flush=True)
        row = {"step": task.step, "title": task.title, "status": status, "minutes": minutes}
        record["tasks"].append({**row, "limit": task.minutes, "file": task.file})
        (out / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return all(row["status"] == "done" for row in record["tasks"] if row["title"] in titles)


def make_table(names: Sequence[str], profile: str, out: Path) -> None:
    """Make the first table whose model is installed, and keep its rows after every point.

    Raises:
        ImportError: The models of all of them are missing.
    """
    missing = {name: lacking(read_manifest(name)) for name in names}
    name = next((name for name in names if missing[name] is None), None)
    if name is None:
        raise ImportError("; ".join(str(line) for line in missing.values()))
    with TemporaryDirectory() as folder:

        def keep(line: str) -> None:
            print(line, flush=True)
            parts = [pd.read_csv(path) for path in sorted(Path(folder).glob("points/*/rows.csv"))]
            pd.concat(parts).assign(table=name).to_csv(out, index=False)

        tables.run(name, profile=profile, into=folder, progress=keep, jobs=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 where a task failed or no card is there."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--plan", action="store_true", help="print the tasks and their limits")
    parser.add_argument("--step", choices=sorted({task.step for task in TASKS}), nargs="*", default=[])
    parser.add_argument("--small", action="store_true", help="tiny sizes on a processor")
    parser.add_argument("--out", type=Path, default=ROOT / "_build" / "gpu", help="default: %(default)s")
    parser.add_argument("--tables", nargs="+", help="for its own processes")
    parser.add_argument("--profile", default="gpu_short", help="for its own processes")
    chosen = parser.parse_args(arguments)
    if chosen.tables:
        make_table(chosen.tables, chosen.profile, chosen.out)
        return 0
    tasks = [task for task in TASKS if not chosen.step or task.step in chosen.step]
    print(plan(tasks), flush=True)
    if chosen.plan:
        return 0
    if not chosen.small and gpu_name() is None:
        print("torch finds no CUDA device here; --small tries every task on a processor", file=sys.stderr)
        return 1
    done = measure(tasks, chosen.out.resolve(), small=chosen.small)
    print(f"The results are in {chosen.out}")
    return 0 if done else 1


if __name__ == "__main__":
    raise SystemExit(main())
