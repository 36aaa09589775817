"""The results of the concordance: rows, labels and verdicts exist and agree with the book's sources."""

from __future__ import annotations

from pathlib import Path

from kl_book import tables
from kl_book.ledger.claims import SOURCES, register
from kl_book.ledger.concordance import GROUPS, STATING, concordance, places
from kl_book.ledger.concordance_results import RESULTS
from kl_book.ledger.concordance_works import OUTSIDE
from tests.support.claims_table import VERDICT_OF

BOOK = Path(__file__).resolve().parents[3] / "book"
NAMED = [id for r in RESULTS for m in r.mentions for id in m.rows]


def test_names_differ_and_every_group_has_results() -> None:
    assert len({r.name for r in RESULTS}) == len(RESULTS)
    assert list(dict.fromkeys(r.group for r in RESULTS)) == list(GROUPS)
    assert all(r.name.endswith(".") and len(r.name) <= 110 for r in RESULTS)


def test_every_row_is_in_the_register_and_every_paper_is_named() -> None:
    assert set(NAMED) <= set(register())
    assert {register()[id].source for id in NAMED} == set(SOURCES) - {"summary2025pitfalls"}


def test_every_work_outside_the_ledger_is_named() -> None:
    assert {m.work for r in RESULTS for m in r.mentions} >= set(OUTSIDE)


def test_every_label_is_in_the_sources_of_the_book() -> None:
    labels = {label for r in RESULTS for label in r.here}
    assert labels <= set(places(BOOK))
    assert all(r.here for r in RESULTS if r.own)


def test_the_verdicts_are_those_of_the_table() -> None:
    claims = tables.load("claims")
    judged = dict(zip(claims["id"], claims["verdict"], strict=True))
    found = concordance(RESULTS, claims, places(BOOK))
    assert all(found.verdict(id) == judged[id] for id in NAMED if id in judged)
    if set(claims["source"]) == set(SOURCES):  # else it was made before the last papers were examined
        assert set(NAMED) <= set(judged)


def test_what_states_a_result_was_not_found_false_without_a_word() -> None:
    """A row that states a result and fails does so in a case at the edge, which is written down here."""
    failing = ("misprint", "false as printed")
    stating = {id for r in RESULTS for m in r.mentions if m.relation in STATING for id in m.rows}
    zero = {"EMA-eq139-140", "EMA-tab7-alpha+caption", "VY-eq11"}  # an answer with probability zero
    assert {id for id in stating if VERDICT_OF[id] in failing} == zero


def test_what_contradicts_a_result_does_not_hold() -> None:
    contradicting = {id for r in RESULTS for m in r.mentions if m.relation == "contradicts" for id in m.rows}
    assert {VERDICT_OF[id] for id in contradicting} == {"false as printed"}
