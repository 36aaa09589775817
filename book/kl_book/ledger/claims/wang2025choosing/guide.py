"""The references, names of authors against those at arXiv (wang2025choosing)."""

from __future__ import annotations

from collections.abc import Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, numbers

LISTED = ("Yifan Zhang", "Yiping Ji", "Gavin Brown")
AUTHORS = ("Yifan Zhang", "Yifeng Liu", "Huizhuo Yuan", "Yang Yuan", "Quanquan Gu", "Andrew Chi-Chih Yao")
SHAH_LISTED = 8
SHAH = (
    *("Vedant Shah", "Johan Obando-Ceron", "Vineet Jain", "Brian Bartoldson", "Bhavya Kailkhura"),
    *("Sarthak Mittal", "Glen Berseth", "Pablo Samuel Castro", "Yoshua Bengio", "Nikolay Malkin"),
    *("Moksh Jain", "Siddarth Venkatraman", "Aaron Courville"),
)


@claim("WZ-refs")
def authors_of_the_listed_paper() -> Iterator[Found]:
    """Names in the list of references that are among the authors at arXiv:2505.17508."""
    right = [name for name in LISTED if name in AUTHORS]
    yield numbers(count=len(AUTHORS), authors=AUTHORS, listed=len(LISTED), right=len(right), names=right)


@claim("WZ-refs-shah")
def authors_of_the_other_listed_paper() -> Iterator[Found]:
    """The list of references ends after eight of the authors, without saying that there are more."""
    yield numbers(count=len(SHAH), listed=SHAH_LISTED, others=SHAH[SHAH_LISTED:])
