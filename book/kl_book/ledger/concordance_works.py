"""The works of the concordance with their dates: sources of the ledger, and works outside of it."""

from __future__ import annotations

from typing import NamedTuple

from kl_book.ledger.claims.standard import NAMES, READINGS
from kl_companion.checks import check_choice

# Year and month of the first version that is known, of each source of the ledger; without a month: unknown.
DATES = {
    "vojnovic2025alignment": "2025-02",
    "zhang2025design": "2025-05",
    "tang2025pitfalls": "2025-06",
    "summary2025pitfalls": "2025-06",
    "wang2025choosing": "2025-12",
    "zheng2025stabilizing": "2025-12",
    "shah2025comedy": "2025-12",
    "yao2026future": "2026-01",
    "emapg2026": "2026-02",
    "ding2026misfires": "2026",
}


class Work(NamedTuple):
    """A work of the list of references whose statements are not in the ledger: its short name and date."""

    name: str
    date: str


OUTSIDE = {
    "williams1992": Work("Williams", "1992"),
    "precup2000eligibility": Work("Precup et al.", "2000"),
    "schulman2015graphs": Work("Schulman et al.", "2015"),
    "schulman2017equivalence": Work("Schulman et al.", "2017-04"),
    "kool2019buy": Work("Kool et al.", "2019"),
    "schulman2020": Work("Schulman", "2020"),
    "amini2025better": Work("Amini et al.", "2025-04"),
    "liu2025rethinking": Work("Liu et al.", "2025-10"),
    "zhu2026faces": Work("Zhu et al.", "2026-05"),
    "zhang2026cumulative": Work("Zhang et al.", "2026-05"),
}


def date_of(work: str) -> str:
    """The date of a source of the ledger or of a work outside of it.

    Raises:
        ValueError: a key that is neither.
    """
    if work in OUTSIDE:
        return OUTSIDE[work].date
    check_choice("work", work, (*DATES, *OUTSIDE))
    return DATES[work]


def by_date(date: str) -> tuple[str, str]:
    """What dates are sorted by: one without a month comes after the months of its year."""
    return date[:4], date[4:] or "~"


def name_of(work: str) -> str:
    """How the book calls a source of the ledger, or a work outside of it."""
    return OUTSIDE[work].name if work in OUTSIDE else NAMES[work]


def dates() -> dict[str, list[str]]:
    """The sources of the ledger in the order of their dates: name, date, and the version that was read."""
    order = sorted(DATES, key=lambda work: by_date(DATES[work]))
    return {
        "paper": [NAMES[work] for work in order],
        "first version": [
            DATES[work] if "-" in DATES[work] else f"{DATES[work]}, no month" for work in order
        ],
        "what was read": [READINGS[work].version for work in order],
    }
