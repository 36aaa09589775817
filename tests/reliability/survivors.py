"""The mutants that no test notices, each with the reason why none should: survivors.yml."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from tests.reliability.mutating import Key, Mutant, changes_of, mutant, path_of, source_of

FILE = Path(__file__).with_name("survivors.yml")


@cache
def explained() -> dict[Key, str]:
    """The reasons, by `Mutant.key`."""
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8")) or []
    return {
        (f"kl_companion.{e['module']}", e["function"] or "", e["was"], e["becomes"] or ""): e["why"]
        for e in entries
    }


def entry(survivor: Mutant) -> str:
    """What to write into the file, but for the reason."""
    of = {
        "module": survivor.module.removeprefix("kl_companion."),
        "function": survivor.function,
        "was": survivor.was,
        "becomes": survivor.becomes,
        "why": "?",
    }
    return yaml.safe_dump([of], sort_keys=False, allow_unicode=True, width=110)


def stale() -> Iterator[Key]:
    """Entries that no mutant matches: the source has changed, and the reason has to be thought of again."""
    for key in explained():
        module, _, was, _ = key
        first = was.splitlines()[0]
        if not path_of(module).is_file():
            yield key
            continue
        lines = [i for i, line in enumerate(source_of(module).splitlines(), 1) if line.strip() == first]
        last = len(was.splitlines()) - 1
        near = (c for c in changes_of(module) if any(i <= c.line <= i + last for i in lines))
        if not any((made := mutant(module, c)) is not None and made.key == key for c in near):
            yield key
