"""Dates of the works: those of the list of references, and their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kl_book.ledger.claims.standard import READINGS
from kl_book.ledger.concordance_works import DATES, OUTSIDE, by_date, date_of, dates, name_of

BIBLIOGRAPHY = Path(__file__).resolve().parents[3] / "book" / "references.bib"
ENTRIES = dict(
    re.findall(
        r"^@\w+\{([^,\s]+),(.*?)^\}", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
)


def field(key: str, name: str) -> str:
    found = re.search(rf"\b{name}\s*=\s*\{{(.*?)\}}", ENTRIES[key])
    return found[1] if found else ""


def test_every_source_of_the_ledger_has_a_date() -> None:
    assert set(DATES) == set(READINGS)
    assert not set(DATES) & set(OUTSIDE)


@pytest.mark.parametrize("key", [*DATES, *OUTSIDE])
def test_a_date_is_that_of_the_list_of_references(key: str) -> None:
    assert field(key, "year") == date_of(key)[:4]
    eprint = field(key, "eprint")
    if eprint:
        assert date_of(key) == f"20{eprint[:2]}-{eprint[2:4]}"
    assert re.fullmatch(r"\d{4}(-\d\d)?", date_of(key))


def test_a_year_without_a_month_comes_after_its_months() -> None:
    order = ["2025-12", "2026-01", "2026-11", "2026", "2027-01"]
    assert sorted([order[i] for i in (3, 4, 0, 2, 1)], key=by_date) == order


def test_the_table_of_dates_is_in_their_order() -> None:
    table = dates()
    assert table["paper"][0] == "Vojnovic & Yun"
    assert table["paper"][-1] == "ZCPO"
    assert table["first version"][-1] == "2026, no month"
    assert {len(column) for column in table.values()} == {len(DATES)}


def test_names_and_what_is_no_work() -> None:
    assert name_of("yao2026future") == "FRPO"
    assert name_of("kool2019buy") == "Kool et al."
