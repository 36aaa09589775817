"""Run the tests in groups and say what each took against its budget: `make test`, or some groups by name.

.venv/bin/python tests/run.py [quick|unit|notebooks|ledger|site|frameworks|interruption ...] [for pytest]

The budgets are those of a machine with two cores and nothing else to do: twelve minutes for all groups. Apart
from them, 75 seconds for `quick`: the core's tests, without a browser, frameworks or a built book.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.warm import warm  # noqa: E402

# One thread per process, for two run side by side; and what one has compiled is not compiled by the next.
SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
# A file goes to one process, in the order of `LONGEST` in conftest.py and not by how many tests it has.
PARALLEL = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
INTERRUPTION = [
    "tests/book/tables/test_runner_interruption.py",
    "tests/book/tables/test_cluster.py",
    "tests/reliability",
]
ROOMS = ["auditing", "divergences", "estimators", "kernels", "policy_losses", "rollout", "tabular", "theory"]
CORE = [  # of the floors up to the audits
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/test_*.py")),
    *(f"tests/{room}" for room in ROOMS),
    "tests/house/test_floors.py",
    "tests/house/test_layout.py",
]


class Group(NamedTuple):
    """Tests that run together: a title, the minutes they may take, what they need, arguments for pytest."""

    title: str
    budget: float
    paths: list[str]  # the group is left out while none of them exists
    arguments: list[str]
    warm: bool = False  # its processes and notebooks fork from one that has imported their libraries


NOTEBOOKS = "tests/notebooks"  # its tests execute notebooks too
OWN_GROUP = [
    NOTEBOOKS,
    "tests/site",
    "tests/book/ledger",
    "tests/llm",
    "tests/book/lab",
    "tests/frameworks",
    "tests/monitor",  # in trainers of TRL
]
EVERYDAY = "not interruption and not reliability"
GROUPS = {
    "quick": Group("quick", 1.25, CORE, ["-m", f"not slow and {EVERYDAY}", *PARALLEL]),
    "unit": Group(
        "unit and registry",
        3.25,
        ["tests"],
        ["-m", EVERYDAY, *PARALLEL, *(f"--ignore={path}" for path in OWN_GROUP)],
        warm=True,
    ),
    "notebooks": Group(
        "notebooks",
        3.0,
        ["book", NOTEBOOKS],
        [
            *("-m", EVERYDAY),
            "--nbmake",
            "--nbmake-timeout=300",
            "-n",
            "2",
            "--maxschedchunk=1",
        ],  # a long one is never queued behind
        warm=True,
    ),
    "ledger": Group(
        "ledger",
        1,
        ["tests/book/ledger"],
        ["-m", EVERYDAY, "-n", "2", "--dist", "worksteal"],  # two of its files take nearly all its time
    ),
    "site": Group(
        "site",
        2.75,
        ["tests/site"],
        ["-m", EVERYDAY, "-rs", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"],
    ),
    "frameworks": Group(
        "models and frameworks",
        1.25,
        ["tests/llm", "tests/book/lab", "tests/frameworks", "tests/monitor"],
        PARALLEL,
        warm=True,
    ),
    "interruption": Group("interruption", 0.75, INTERRUPTION, ["-m", "interruption", *PARALLEL]),
}


def build_site() -> None:
    """Build the book when its first page is missing; a book that does not build has no pages to test."""
    if (ROOT / "_build" / "html" / "index.html").is_file():
        return
    print("==> No built book yet: building it first", flush=True)
    subprocess.run([sys.executable, "book/_ext/kl_npm.py"], cwd=ROOT, check=False)
    program = Path(sys.executable).with_name("jupyter-book")
    subprocess.run([program, "build", ".", "-n", "-W", "--keep-going"], cwd=ROOT, check=False)


def run(
    group: Group, extra: list[str], started: ExitStack, more: dict[str, str], to: IO[str] | None = None
) -> tuple[int, float]:
    """Run one group; its exit status and its seconds, a shared start included. It prints into ``to``."""
    print(f"\n==> {group.title}", flush=True, file=to)
    paths = [path for path in group.paths if (ROOT / path).exists()]
    start = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *group.arguments, *extra, *paths]
    if group.warm and not more:
        more |= started.enter_context(warm())
    environment = {**os.environ, **(more if group.warm else {})}
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=to, stderr=to).returncode
    return status, time.monotonic() - start


def run_all(present: Sequence[Group], extra: list[str]) -> list[tuple[Group, int, float]]:
    """Run groups one after the other; those whose processes mostly wait to be killed, beside the others."""
    killed = GROUPS["interruption"]
    with ExitStack() as started, ThreadPoolExecutor(1) as beside, TemporaryFile("w+") as printed:
        more: dict[str, str] = {}
        results = []
        waiting = None
        for group in present:
            if group is GROUPS["site"] and killed in present:
                waiting = beside.submit(run, killed, extra, started, more, printed)
            if group is not killed or waiting is None:
                results.append((group, *run(group, extra, started, more)))
        if waiting is not None:
            results.append((killed, *waiting.result()))
            printed.seek(0)
            print(printed.read(), flush=True)
    return results


def main(arguments: list[str]) -> int:
    """Run all groups, or those named first; 0 when all of them passed."""
    names = list(takewhile(lambda argument: not argument.startswith("-"), arguments))
    if unknown := [name for name in names if name not in GROUPS]:
        print(f"unknown group {unknown[0]!r}; the groups are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    arguments = arguments[len(names) :]
    chosen = {name: group for name, group in GROUPS.items() if (name in names if names else name != "quick")}
    present = [group for group in chosen.values() if any((ROOT / path).exists() for path in group.paths)]
    if not present:
        print("none of the named tests exists", file=sys.stderr)
        return 2
    if GROUPS["site"] in present:
        build_site()
    os.environ.update(SETTINGS)
    begin = time.monotonic()
    results = run_all(present, arguments)
    total = time.monotonic() - begin
    print(f"\n{'group':<24}{'seconds':>9}{'budget':>9}")
    for group, status, seconds in results:
        marks = ("" if status == 0 else "  FAILED") + ("  OVER BUDGET" if seconds > 60 * group.budget else "")
        print(f"{group.title:<24}{seconds:>9.0f}{60 * group.budget:>9.0f}{marks}")
    allowed = 60 * sum(r[0].budget for r in results)
    print(f"{'total':<24}{total:>9.0f}{allowed:>9.0f}{'  OVER BUDGET' if total > allowed else ''}")
    return int(any(status for _, status, _ in results))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
