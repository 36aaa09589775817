"""Bad input at every entry point: the catalogue of the back matter, each case run and its message judged."""

from __future__ import annotations

from collections.abc import Iterator

from tests.refusals import GROUPS, run, unclear
from tests.reliability.trying import Trial


def trials(quick: bool, seed: int) -> Iterator[Trial]:
    """A line per theme; quick is the first theme. The seed plays no part."""
    for theme, cases in list(GROUPS.items())[: 1 if quick else None]:
        said = []
        for refusal in (run(case) for case in cases):
            if fault := unclear(refusal):
                said.append(f"{refusal.entry}, {refusal.kind}: {fault}")
        yield Trial(f"bad input, {theme[0].lower()}{theme[1:]}", len(cases), len(said), said=tuple(said))
