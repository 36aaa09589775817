"""Run the tests in groups and say what each took against its budget: `make test`, or one group by its name.

.venv/bin/python tests/run.py [unit|notebooks|ledger|site|frameworks|interruption] [arguments for pytest]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.warm import warm  # noqa: E402

# One thread per process, for two run side by side; and what one has compiled is not compiled by the next.
SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
PARALLEL = ["-n", "2", "--dist", "loadfile"]
INTERRUPTION = [
    "tests/tables/test_interruption.py",
    "tests/tables/test_cluster.py",
    "tests/reliability",
]


class Group(NamedTuple):
    """Tests that run together: a title, the minutes they may take, what they need, arguments for pytest."""

    title: str
    budget: float
    paths: list[str]  # the group is left out while none of them exists
    arguments: list[str]
    warm: bool = False  # start its notebooks from a process that has imported their libraries


NOTEBOOKS = ["tests/test_book.py", "tests/test_tables.py", "tests/test_warm.py"]  # they execute notebooks too
LEDGER = [  # a file goes to one worker: the sources are two halves
    "tests/test_sabotage_of_ema_claims.py",
    "tests/test_sabotage_of_claims.py",
    "tests/test_claims.py",
    "tests/test_errata.py",
    "tests/test_corrected_forms.py",
    "tests/test_ledger_page.py",
    "tests/test_reported_claims.py",
    "tests/reliability/test_mutants_quick.py",  # of the code, beside those of the claims
]
PAGES = [  # they look at the built pages
    "tests/test_site.py",
    "tests/test_site_sizes.py",
    "tests/test_front_page.py",
    "tests/test_explorer.py",
    "tests/test_explorer_page.py",
    "tests/test_reading.py",
]
OWN_GROUP = [
    *NOTEBOOKS,
    *PAGES,
    "tests/site",
    *LEDGER,
    "tests/llm",
    "tests/frameworks",
]
GROUPS = {
    "unit": Group(
        "unit and registry",
        4,
        ["tests"],
        ["-m", "not interruption", *PARALLEL, *(f"--ignore={path}" for path in OWN_GROUP)],
    ),
    "notebooks": Group(
        "notebooks",
        6,
        ["book", *NOTEBOOKS],
        [
            "--nbmake",
            "--nbmake-timeout=300",
            "-n",
            "2",
            "--maxschedchunk=1",
        ],  # a long one is never queued behind
        warm=True,
    ),
    "ledger": Group("ledger", 3, LEDGER, PARALLEL),
    "site": Group("site", 2, PAGES, ["-rs", "-n", "2", "--maxschedchunk=1"]),
    "frameworks": Group("models and frameworks", 3, ["tests/llm", "tests/frameworks"], PARALLEL),
    "interruption": Group("interruption", 1, INTERRUPTION, ["-m", "interruption", *PARALLEL]),
}


def build_site() -> None:
    """Build the book when its first page is missing; a book that does not build has no pages to test."""
    if (ROOT / "_build" / "html" / "index.html").is_file():
        return
    print("==> No built book yet: building it first", flush=True)
    program = Path(sys.executable).with_name("jupyter-book")
    subprocess.run([program, "build", ".", "-n", "-W", "--keep-going"], cwd=ROOT, check=False)


def run(group: Group, extra: list[str]) -> tuple[int, float]:
    """Run one group; its exit status and its seconds."""
    print(f"\n==> {group.title}", flush=True)
    paths = [path for path in group.paths if (ROOT / path).exists()]
    start = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *group.arguments, *extra, *paths]
    with warm() if group.warm else nullcontext({}) as more:
        environment = {**os.environ, **more}
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    return status, time.monotonic() - start


def main(arguments: list[str]) -> int:
    """Run all groups, or the one named first; 0 when all of them passed."""
    chosen = GROUPS
    if arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        if name not in GROUPS:
            print(f"unknown group {name!r}; the groups are {', '.join(GROUPS)}", file=sys.stderr)
            return 2
        chosen = {name: GROUPS[name]}
    present = [group for group in chosen.values() if any((ROOT / path).exists() for path in group.paths)]
    if not present:
        print("none of the named tests exists", file=sys.stderr)
        return 2
    if GROUPS["site"] in present:
        build_site()
    os.environ.update(SETTINGS)
    results = [(group, *run(group, arguments)) for group in present]
    print(f"\n{'group':<24}{'seconds':>9}{'budget':>9}")
    for group, status, seconds in results:
        marks = ("" if status == 0 else "  FAILED") + ("  OVER BUDGET" if seconds > 60 * group.budget else "")
        print(f"{group.title:<24}{seconds:>9.0f}{60 * group.budget:>9.0f}{marks}")
    total, allowed = sum(r[2] for r in results), 60 * sum(r[0].budget for r in results)
    print(f"{'total':<24}{total:>9.0f}{min(allowed, 1200):>9.0f}{'  OVER BUDGET' if total > 1200 else ''}")
    return int(any(status for _, status, _ in results))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
