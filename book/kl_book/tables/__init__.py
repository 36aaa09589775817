"""Result tables: numbers that take longer than a chapter may, computed once, kept with their provenance.

A table is a folder `tables/<name>/` with a hand-written `manifest.yml` and two files that only `run` writes:
`table.csv` and `provenance.json`. The manifest names a notebook, a grid of parameters (one run of the
notebook per point) and the columns. A notebook hands its rows over with one line, `write_rows(out, rows)`.

>>> from kl_book import tables
>>> tables.run("estimator_values", profile="cpu", jobs=2)   # doctest: +SKIP
>>> frame = tables.load("estimator_values")                 # doctest: +SKIP

The names are loaded on first use: importing this package imports neither papermill nor pandas, and a chapter
that only loads tables does not depend on the code that runs them.
"""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_book.tables.checking import check as check
    from kl_book.tables.checking import drift as drift
    from kl_book.tables.confirmation import confirm as confirm
    from kl_book.tables.notebook_process import TableError as TableError
    from kl_book.tables.project import names as names
    from kl_book.tables.project import project_root as project_root
    from kl_book.tables.rows import write_rows as write_rows
    from kl_book.tables.runner import run as run
    from kl_book.tables.store import load as load

__getattr__, __all__, __dir__ = lazy(__name__)
