"""Table 1: every estimator with its value, its gradient and its memory, as printed (emapg2026).

The expressions are written out from the table; of the package only the worlds take part. A position is a
world of one token, because the table speaks of one token at a given prefix.
"""

from __future__ import annotations

from collections.abc import Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.table_one import error_of_row


@claim("EMA-tab1-RKL")
def exact_reverse_row() -> Iterator[Found]:
    """Value and gradient of KL(pi || pi_ref), V numbers."""
    yield from each_form(error_of_row("Reverse KL: exact"))


@claim("EMA-tab1-K1")
def k1_row() -> Iterator[Found]:
    """Unbiased value, gradient of mean zero, one number."""
    yield from each_form(error_of_row("K1"))


@claim("EMA-tab1-K2")
def k2_row() -> Iterator[Found]:
    """Value E[(log w)^2 / 2], gradient of the reverse KL, one number."""
    yield from each_form(error_of_row("K2"))


@claim("EMA-tab1-K3")
def k3_row() -> Iterator[Found]:
    """Unbiased value, gradient of the forward KL, one number."""
    yield from each_form(error_of_row("K3"))


@claim("EMA-tab1-K3pp")
def k3_plus_plus_row() -> Iterator[Found]:
    """Value and gradient of the reverse KL, one number."""
    yield from each_form(error_of_row("K3++"))


@claim("EMA-tab1-K4")
def k4_row() -> Iterator[Found]:
    """Value and gradient of the reverse KL, one number."""
    yield from each_form(error_of_row("K4"))


@claim("EMA-tab1-FKL")
def exact_forward_row() -> Iterator[Found]:
    """Value and gradient of KL(pi_ref || pi), V numbers."""
    yield from each_form(error_of_row("Forward KL: exact"))


@claim("EMA-tab1-K5")
def k5_row() -> Iterator[Found]:
    """Value and gradient of the forward KL, one number."""
    yield from each_form(error_of_row("K5"))
