"""Table 1: every estimator with its value, its gradient and its memory, as printed (emapg2026).

The expressions are written out from the table; of the package only the worlds take part. A position is a
world of one token, because the table speaks of one token at a given prefix.
"""

from __future__ import annotations

from collections.abc import Iterator

from kl_book.ledger.claims.checks import claim_rows
from kl_book.ledger.claims.comparisons import Found, printed
from kl_book.ledger.claims.ground.table_one import error_of_row

NAMES = {"RKL": "Reverse KL: exact", "K3pp": "K3++", "FKL": "Forward KL: exact"}


def row_of_table(name: str) -> Iterator[Found]:
    """A row's value, its gradient, its memory and its marks are as printed."""
    yield printed(error_of_row(NAMES.get(name, name)))


claim_rows(
    row_of_table,
    {f"EMA-tab1-{name}": [name] for name in ("RKL", "K1", "K2", "K3", "K3pp", "K4", "FKL", "K5")},
)
