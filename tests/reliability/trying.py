"""What every subject returns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.installing.trying import ROOT


class Trial(NamedTuple):
    """One line: what was done, how often, and how often it went wrong.

    Attributes:
        what: What was done, in words that are understood without the code.
        tried: How often.
        failed: How often the result was not what it must be (a mutant that no test noticed, a next run that
            did not complete, a wrong answer).
        lost: How often something was lost: a corrupt or half-written file, finished work that was repeated,
            bytes that differ from those of an undisturbed run. None where nothing can be lost.
        said: One line per failure or loss, for whoever has to mend it.
    """

    what: str
    tried: int
    failed: int
    lost: int | None = None
    said: tuple[str, ...] = ()


# a subject: `quick` is the form that `make test` runs, seconds; `seed` draws what is random
Subject = Callable[[bool, int], Iterator[Trial]]


def run_tests(arguments: list[str], written: Path, **variables: str) -> None:
    """Run pytest in a process of its own, where tests may fail; RuntimeError unless it has written a file."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if not written.is_file():
        said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        raise RuntimeError(f"{' '.join(arguments)} did not run:\n{said}")
