"""Random inputs for every public function, estimator and divergence: the examples of tests/numerics."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.numerics.conftest import VARIABLE as TALLY
from tests.numerics.settings import VARIABLE as EXAMPLES
from tests.reliability.trying import Trial, run_tests

FOLDER = "tests/numerics"
MANY, FEW = 100, 2  # examples per property, and in the quick form, which `make test` has run with more
WHAT = {
    "test_samples.py": "estimators of a sample: the number that 60 digits give, or an error",
    "test_distributions.py": "divergences of distributions: the number that 60 digits give, or an error",
    "test_public.py": "every public function at and beyond its edges: an answer or an error, never NaN",
    "test_refusals.py": "inputs that once gave NaN or nothing",
}


def trials(quick: bool, seed: int) -> Iterator[Trial]:
    """A line per kind of property; the examples are hypothesis's own, and the seed plays no part."""
    files = [f"{FOLDER}/test_samples.py"] if quick else [FOLDER]
    with tempfile.TemporaryDirectory() as folder:
        tally = Path(folder) / "tally"
        run_tests(files, tally, **{EXAMPLES: str(FEW if quick else MANY), TALLY: str(tally)})
        lines = [json.loads(line) for line in tally.read_text(encoding="utf-8").splitlines()]
    yield from counted(lines)


def counted(lines: list[dict[str, object]]) -> Iterator[Trial]:
    """The lines of a tally by the file that they come from; a test that failed counts once."""
    tried: dict[str, int] = defaultdict(int)
    failed: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        test = str(line["test"])
        name = Path(test.partition("::")[0]).name
        tried[name] += int(str(line["examples"]))
        if line["failed"]:
            failed[name].append(test)
    for name, what in WHAT.items():
        if name in tried:
            yield Trial(what, tried[name], len(failed[name]), said=tuple(failed[name]))
