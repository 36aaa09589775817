"""What was built, installed into empty environments, and used there: `make install-check`, counted.

The whole clone is of the last commit, so its tests look at that commit's table, not at the one being made.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.installing import installation
from tests.reliability.trying import Trial


def trials(quick: bool, seed: int) -> Iterator[Trial]:
    """A line per environment; quick is what is built and packed. The seed plays no part."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"
        installation.main(["--json", str(file), "--only", *(() if quick else installation.PARTS)])
        outcomes = json.loads(file.read_text(encoding="utf-8"))["outcomes"]
    yield from counted(outcomes)


def counted(outcomes: list[dict[str, str]]) -> Iterator[Trial]:
    """Outcomes by environment; what could not be tried here is not counted as tried, and said."""
    tried: dict[str, int] = defaultdict(int)
    failed: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        name = outcome["environment"]
        tried[name] += outcome["status"] != "not tried"
        if outcome["status"] == "failed":
            failed[name].append(f"{name}, {outcome['tried']}: {outcome['said'][-500:]}")
    for name, count in tried.items():
        yield Trial(f"installation, {name}", count, len(failed[name]), said=tuple(failed[name]))
