"""Table 1: every estimator with its value, its gradient and its memory, as printed (emapg2026).

The expressions are written out from the table; of the package only the worlds take part. A position is a
world of one token, because the table speaks of one token at a given prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, printed
from kl_book.ledger.claims.ground.table_one import error_of_row


def check_of_row(name: str) -> Callable[[], Iterator[Found]]:
    """Check of a row: its value, its gradient, its memory and its marks."""

    def check() -> Iterator[Found]:
        yield printed(error_of_row(name))

    return check


for _id, _name in {
    "RKL": "Reverse KL: exact",
    "K1": "K1",
    "K2": "K2",
    "K3": "K3",
    "K3pp": "K3++",
    "K4": "K4",
    "FKL": "Forward KL: exact",
    "K5": "K5",
}.items():
    claim(f"EMA-tab1-{_id}")(check_of_row(_name))
