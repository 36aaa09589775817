"""Result tables: numbers that take longer than a chapter may, computed once, kept with their provenance.

A table is a folder `tables/<name>/` with a hand-written `manifest.yml` and two files that only `run` writes:
`table.csv` and `provenance.json`. The manifest names a notebook, a grid of parameters (one run of the
notebook per point) and the columns. A notebook hands its rows over with one line, `write_rows(out, rows)`.

>>> from kl_companion import tables
>>> tables.run("estimator_values", profile="cpu", jobs=2)   # doctest: +SKIP
>>> frame = tables.load("estimator_values")                 # doctest: +SKIP

The names are loaded on first use: importing this package imports neither papermill nor pandas, and a chapter
that only loads tables does not depend on the code that runs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kl_companion.tables.checking import check, drift
    from kl_companion.tables.project import names, project_root
    from kl_companion.tables.rows import write_rows
    from kl_companion.tables.runner import TableError, run
    from kl_companion.tables.store import load

_NAMES: dict[str, str] = {
    "TableError": "kl_companion.tables.runner",
    "check": "kl_companion.tables.checking",
    "drift": "kl_companion.tables.checking",
    "load": "kl_companion.tables.store",
    "names": "kl_companion.tables.project",
    "project_root": "kl_companion.tables.project",
    "run": "kl_companion.tables.runner",
    "write_rows": "kl_companion.tables.rows",
}

__all__ = ["TableError", "check", "drift", "load", "names", "project_root", "run", "write_rows"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
