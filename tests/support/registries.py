"""Registries as they were before: a loss without an explanation is compared with every objective seen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def objectives_of_one() -> Iterator[None]:
    """Take away the objectives that one test, or one audit, adds."""
    audits = sys.modules.get("kl_companion.auditing.worlds.divergences")
    if audits is None:
        yield
        return
    registries = (audits.ADDED, sys.modules["kl_companion.auditing.worlds.objective"].OBJECTIVES)
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        if len(registry) != len(entries):
            registry.clear()
            registry.update(entries)
