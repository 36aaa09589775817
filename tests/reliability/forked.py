"""Runs tests on a changed module, each time in a process of its own that has the libraries already.

A process is forked for every module, and from it one for every mutant: the libraries, and what of the
package does not read the module, are imported once. The changed source is given to the import, below the
tests' checker of types (`tests.support.typecheck`): no file changes and none is written.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.support import layout, typecheck

LIBRARIES = ("beartype.typing", "hypothesis", "sympy", "torch", "yaml")
PACKAGES = typecheck.PACKAGES
ARGUMENTS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
STATM = Path("/proc/self/statm")  # Linux: what the process takes
MEMORY = 8 * 2**30  # bytes beyond what the libraries take: a mutant may ask for any number
NOTICED = (1, 2, 3)  # pytest's: a test failed, a file could not be imported, pytest itself broke
PATIENCE = 4  # seconds on the clock per second of processor: a lock that is never released takes none


class Outcome(NamedTuple):
    """What became of a mutant.

    Attributes:
        noticed: Whether a test failed, or did not end in time.
        by: The first test that failed; "time", or how the process ended, where no test did. Empty where all
            of them ran and passed.
        used: Whether the tests imported the module at all.
        seconds: On the clock.
    """

    noticed: bool
    by: str
    used: bool
    seconds: float


def ready() -> None:
    """Import the libraries, and make every run of hypothesis the same; before anything is forked."""
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]  # the reader of public names: a change of it would not be seen
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # hypothesis is the only plugin that is needed
    for name in LIBRARIES:
        importlib.import_module(name)
    import hypothesis
    import torch

    torch.set_num_threads(1)
    # no shrinking: that a test fails is enough; no database: a failure is not tried on the next mutant
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, phases=phases, print_blob=False
    )
    hypothesis.settings.load_profile("mutants")


class _Loader(typecheck._Loader):
    """Gives another source, and notes that it was asked."""

    source = b""
    used = False

    def get_data(self, path: str) -> bytes:
        if path != self.path:
            return super().get_data(path)
        type(self).used = True
        return self.source


class _Changed(MetaPathFinder):
    """Finds one module, with another source."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        _Loader.source = self.source.encode()
        spec.loader = _Loader(name, spec.origin)
        return spec


@cache
def _named_in(module: str) -> frozenset[str]:
    """The modules of both packages that a module imports by itself, the package that it lies in included."""
    paths = {layout.dotted(name): path for name, path in layout.modules().items()}
    if module not in paths:  # a name of the module above, or a package itself
        return frozenset()
    return frozenset({module.rpartition(".")[0], *map(layout.dotted, layout.names(paths[module]))})


def _reads(name: str, module: str) -> bool:
    """Whether importing ``name`` imports the module."""
    seen, ahead = set[str](), {name}
    while ahead and module not in ahead:
        seen |= ahead
        ahead = {x for y in ahead for x in _named_in(y)} - seen
    return module in ahead


def prepare(changed: Sequence[str], others: Iterable[str]) -> None:
    """Import those modules that read none of the ones that will be changed; the tests import the rest."""
    for name in others:
        if not any(_reads(name, module) for module in changed):
            importlib.import_module(name)
            if early := sys.modules.keys() & set(changed):
                raise RuntimeError(f"{name} imports {min(early)}, which is not to be read in its source")


class _First:
    """Notes the first test that fails."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (import)"


def _in_child(module: str, source: str, tests: Sequence[str], seconds: float, pipe: int) -> None:
    """Run the tests in this process, which ends; the pipe gets a line of JSON."""
    if STATM.exists():
        size = int(STATM.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))  # a fork begins at 0
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if "KL_COMPANION_SHOW" not in os.environ:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    sys.meta_path.insert(0, _Changed(module, source))
    first = _First()
    status = int(pytest.main([*ARGUMENTS, *tests], plugins=[first]))
    said = {"status": status, "by": first.failed or f"status {status}" * (status > 0), "used": _Loader.used}
    os.write(pipe, json.dumps(said).encode())


def _forked(module: str, source: str, tests: Sequence[str], seconds: float) -> Outcome:
    start = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _in_child(module, source, tests, seconds, writing)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    took = time.monotonic() - start
    if said:
        told = json.loads(said)
        return Outcome(told["status"] in NOTICED, told["by"], told["used"], took)
    if not os.WIFSIGNALED(status):
        raise RuntimeError(f"{module}: the tests {' '.join(tests)} could not be run")
    ended = signal.Signals(os.WTERMSIG(status))
    late = ended in (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL)
    return Outcome(True, "time" if late else ended.name, True, took)


def _through(module: str, source: str, stages: Sequence[Sequence[str]], seconds: float) -> Outcome:
    """One stage of tests after the other, until one notices."""
    start, seen = time.monotonic(), []
    for tests in stages:
        seen.append(_forked(module, source, tests, seconds))
        if seen[-1].noticed:
            break
    noticed, by = seen[-1].noticed, seen[-1].by or next((x.by for x in seen if x.by), "")
    return Outcome(noticed, by, any(x.used for x in seen), time.monotonic() - start)


def outcomes(
    module: str, runs: Sequence[tuple[str, Sequence[Sequence[str]]]], others: Iterable[str], seconds: float
) -> Iterator[Outcome]:
    """What the tests say of each source of a module, one after the other.

    Args:
        module: Dotted name.
        runs: (source, stages) each; a stage is a list of tests, which runs if none before it noticed.
        others: What to `prepare` for all runs together.
        seconds: Of processor time that one stage may take.
    """
    if module in sys.modules:
        raise RuntimeError(f"{module} is imported already: a change of it would not be seen")
    reading, writing = os.pipe()
    worker = os.fork()
    if worker == 0:
        try:
            prepare([module], others)
            for source, stages in runs:
                outcome = _through(module, source, stages, seconds)
                os.write(writing, (json.dumps(outcome) + "\n").encode())
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    count = 0
    with open(reading, encoding="utf-8") as pipe:
        for line in pipe:
            count += 1
            yield Outcome(*json.loads(line))
    os.waitpid(worker, 0)
    if count != len(runs):
        raise RuntimeError(f"{module}: {count} of {len(runs)} runs came to an end")
