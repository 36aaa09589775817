"""The oldest releases that pyproject.toml allows: do the tests of the formulas and kernels pass with them?

`make lowest` runs it. Where the index has torch for CUDA only that is a download of several gigabytes;
TORCH_INDEX=<address> names another.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from tests.installing.trying import LOCK, ROOT, Report, call, environment

NEEDED = ("pytest", "hypothesis", "beartype")
TESTS = ("tests/kernels", "tests/estimators", "tests/divergences", "tests/test_losses*.py")


def lower_bounds() -> list[str]:
    """Return the pins of the oldest allowed release of each dependency, as ``["torch==2.7.*", ...]``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [re.sub(r">=([\d.]+).*", r"==\1.*", dependency) for dependency in project["dependencies"]]


def lowest(report: Report, folder: Path, env: dict[str, str]) -> None:
    """Install the oldest allowed releases and run the tests of formulas and kernels."""
    name = "oldest releases"
    with report.trying(name, "pip install") as notes:
        python = environment(sys.executable, folder / name, None, env)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        torch, *others = lower_bounds()
        index = os.environ.get("TORCH_INDEX")
        call(*pip, *(["--index-url", index] if index else []), torch, cwd=folder, env=env, timeout=3600)
        pins = {line.split("==")[0]: line for line in LOCK.read_text(encoding="utf-8").splitlines()}
        call(*pip, *others, *(pins[package] for package in NEEDED), cwd=folder, env=env)
        notes.append(", ".join([torch, *others]))
    if report.outcomes[-1].status == "failed":
        return
    with report.trying(name, "tests of formulas and kernels") as notes:
        files = [str(path.relative_to(ROOT)) for pattern in TESTS for path in sorted(ROOT.glob(pattern))]
        options = ["-q", "-p", "no:cacheprovider", "-m", "not reliability and not gpu"]
        printed = call(python, "-m", "pytest", *options, *files, cwd=ROOT, env=env, timeout=3600)
        notes.append(printed.strip().splitlines()[-1])
