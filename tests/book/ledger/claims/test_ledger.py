"""The ledger: how errors become a verdict, and what the check of every row finds.

Each check is also run on sabotaged ground: `tests/support/sabotage.py`.
"""

import math
import re

import pytest
import torch

from kl_book import tables
from kl_book.ledger.claims import (
    CLAIMS,
    FAILING,
    SOURCES,
    VERDICTS,
    Evidence,
    checks,
    claim,
    ledger,
    register,
    run,
)
from kl_book.ledger.claims.checks import Claim, extremes
from kl_book.ledger.claims.comparisons import observed, printed
from kl_book.ledger.claims.ground import errors, sums, worlds
from kl_book.ledger.claims.rows import errata
from kl_book.ledger.claims.standard import DEGREES, HEDGES, STANDARD, TOLERANCE
from kl_book.ledger.claims.texts import rows_as_texts
from kl_companion.tabular import bandit
from tests.support.claims_table import CORRECTED, VERDICT_OF
from tests.support.data import data

DATA = data(__file__)
TEXTS = (
    *("verdict", "condition", "given", "note", "correction", "counterexample"),
    *("practice", "needs", "record", "agrees_with", "unit"),
)
ERRORS = {"printed_error": "printed", "condition_error": "inside", "corrected_error": "corrected"}
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


# how errors become a verdict


@pytest.mark.parametrize(("verdict", "errors"), DATA["verdicts"])
def test_the_verdict_follows_from_the_errors(verdict, errors):
    assert Evidence(**errors).verdict == verdict
    assert verdict in VERDICTS
    spared = ("holds", "bibliography", "not reproducible here", "not examined yet")
    assert (verdict in FAILING) == (verdict not in spared)


def test_helpers_of_checks():
    assert errors.excess(1.74, "1.7") == 0.0
    assert errors.excess(1.76, "1.7") == pytest.approx(0.01)
    assert errors.excess(-3.0, "2") == pytest.approx(4.5)
    assert errors.violation() == 0.0
    assert errors.violation(-1.0, 0.0) == 0.0
    assert errors.violation(-1.0, 0.5, 0.25) == 0.5
    assert errors.violation(-1.0, math.nan) == math.inf
    assert errors.apart(torch.tensor([1.0, math.nan]), 1.0) == math.inf
    assert errors.apart(torch.tensor([1.0, -2.0]), 1.0) == 3.0
    assert errors.relative(torch.tensor([4.0, 0.0]), torch.tensor([1.0, 0.0])) == 3.0
    assert errors.relative(torch.zeros(2), torch.zeros(2)) == math.inf
    assert errors.worst([0.0, math.nan]) == math.inf
    assert errors.differs(1.0, 1.0, by=0.5) == 0.5
    assert errors.differs(1.0, 2.0, by=0.5) == 0.0
    assert errors.less(1.0, 2.0) == 0.0
    assert errors.less(2.0, 1.0, by=0.5) == 1.5
    assert errors.less(math.nan, 1.0) == math.inf


def test_a_hedge_needs_its_share_and_nearly_a_tenth():
    assert errors.hedged([True] * 3 + [False]) == 0.0
    assert errors.hedged([True] * 2 + [False] * 2) == pytest.approx(0.25)
    assert errors.hedged([]) == math.inf
    assert errors.degree(0.1) == errors.degree(-0.1) == 0.0
    assert errors.degree(-0.125) == pytest.approx(0.025)
    assert errors.degree(math.nan) == math.inf
    assert len(worlds.hedge_bandits()) == 90
    assert len(worlds.hedge_trees()) == 48


def test_the_standard_says_its_own_numbers():
    text = " ".join(rule.text for rule in STANDARD)
    assert "75%" in text
    assert "10%" in text
    assert all(word in text.lower() for word in (*HEDGES, *DEGREES))
    assert all(rule.name and rule.text.endswith(".") for rule in STANDARD)


def test_worlds_of_the_checks_are_what_they_say():
    problem = worlds.two_policies((0.75, 0.25), (0.5, 0.5))
    t = sums.terms(problem)
    assert t.p.tolist() == pytest.approx([0.75, 0.25])
    assert t.log_ratio[:, 0].tolist() == pytest.approx([math.log(1.5), math.log(0.5)])
    assert t.score[:, 0].tolist() == [pytest.approx([0.25, -0.25]), pytest.approx([-0.75, 0.75])]
    assert sums.variance(t.p, t.score) == pytest.approx(2 * 0.75 * 0.25)
    value, gradient = sums.exact(sums.reverse_kl, problem)
    assert value == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    by_hand = 0.75 * (math.log(1.5) - value)
    assert gradient[0].tolist() == pytest.approx([by_hand, -by_hand])
    assert sums.exact(sums.forward_kl, problem)[1][0].tolist() == pytest.approx([0.25, -0.25])
    drawn, first = worlds.arms(3, 4), bandit(4, seed=1)
    assert torch.equal(drawn.logits[1], first.logits)
    assert torch.equal(drawn.ref_logits[1], first.ref_logits)


# the register


def test_rows_are_complete_and_have_chapters_that_exist_or_are_planned():
    for row in register().values():
        assert all(x == x.strip() for x in row.place.values()), row.id
        assert row.source in SOURCES
        assert row.statement, row.id
        assert row.location, row.id
        folder = row.chapter.partition("/")[0]
        assert row.chapter == "" or folder.startswith("part"), row.id


def test_the_table_has_every_row_in_the_order_of_the_register():
    assert list(VERDICT_OF) == list(register())


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def table():
    return {row["id"]: row for row in rows_as_texts(tables.load("claims"), [*TEXTS, *ERRORS, "id", "how"])}


@pytest.mark.parametrize("id", list(register()))
def test_verdict(id, table, capsys):
    evidence = run(id)
    assert evidence.verdict == VERDICT_OF[id]
    assert (evidence.corrected is not None) == (id in CORRECTED)
    assert id not in CORRECTED or evidence.corrected <= TOLERANCE < evidence.printed
    assert capsys.readouterr() == ("", "")
    texts = [str(x) for x in evidence if isinstance(x, str)]
    assert not any("nan" in text.lower().split() or text != text.strip() for text in texts)
    assert all(text.count("$") % 2 == 0 for text in texts)
    assert (register()[id].how == "reading") == bool(evidence.needs)
    assert register()[id].how == "text" or not evidence.record
    if evidence.agrees_with not in (None, "proof"):
        assert register()[evidence.agrees_with].source == register()[id].source
        assert VERDICT_OF[evidence.agrees_with] in ("holds", "holds only if")
    as_the_table_says(evidence, register()[id].how, table[id])


def words_and_numbers(text):
    """A text without its numbers, and the numbers; what is below 1e-6 is rounding, and counts as 0."""
    numbers = [float(x) for x in NUMBER.findall(text)]
    return NUMBER.sub("#", text), [x if abs(x) > 1e-6 else 0.0 for x in numbers]


def as_the_table_says(found, how, row):
    """The pages show the table: every text and error in it is that of the check, up to rounding."""
    assert row["how"] == how
    for name in TEXTS:
        said, numbers = words_and_numbers(getattr(found, name) or "")
        shown, printed = words_and_numbers(row[name])
        assert (said, name) == (shown, name)
        assert numbers == pytest.approx(printed, rel=0.01), name
    for column, name in ERRORS.items():
        error = None if found.needs or found.record else getattr(found, name)
        if error is None:
            assert row[column] == ""
        elif error <= TOLERANCE:
            assert row[column] == f"below {TOLERANCE:g}"
        else:
            assert float(row[column]) == pytest.approx(float(error), rel=0.01)


FIVE = (
    "yao2026future",
    "ding2026misfires",
    "vojnovic2025alignment",
    "zhang2025design",
    "zheng2025stabilizing",
)


def test_what_fails_in_the_five_papers_says_what_it_means_in_practice_and_how_it_may_be_read(table):
    failing = [row.id for row in register().values() if row.source in FIVE and VERDICT_OF[row.id] in FAILING]
    assert failing
    corrected = {id: erratum.charitable for erratum in errata() for id in erratum.rows}
    for id in failing:
        said = table[id]
        assert said["practice"], id
        assert corrected.get(id) or (said["condition"] and said["given"]), id


def test_every_check_belongs_to_a_row_and_every_row_has_one_or_the_words_of_a_reading():
    ledger.checks()
    rows = register()
    silent = {id for id, row in rows.items() if row.check or row.how == "reading"}
    assert set(CLAIMS) | silent == set(rows)
    assert {rows[id].check for id in silent} - {""} <= set(CLAIMS)


# errors at the door


def test_unknown_rows_and_second_checks_are_refused(monkeypatch, as_installed):
    with pytest.raises(ValueError, match=r"unknown claim 'TM-eq33'\. Did you mean 'TM-eq3'"):
        run("TM-eq33")
    monkeypatch.setattr(checks, "CLAIMS", dict(CLAIMS))

    def other():
        yield printed(0.0)

    with pytest.raises(ValueError, match="'TM-eq3' has the check"):
        claim("TM-eq3")(other)
    assert claim("new")(other) is other


@pytest.mark.parametrize(("evidence", "message"), DATA["lacking"])
def test_evidence_that_lacks_what_it_must_say_is_refused(evidence, message, monkeypatch):
    run("TM-eq3")
    monkeypatch.setattr(Claim, "check", lambda self: Evidence(**evidence))
    with pytest.raises(ValueError, match=message):
        run("TM-eq3")


def test_a_case_has_one_argument_or_several_and_numbers_of_all_cases_fill_gaps():
    of_two, of_one = (Claim("x", f, list) for f in (lambda a, b: iter([a, b]), lambda a: iter([a])))
    assert [[*of_two.on((1, 2))], [*of_one.on((1, 2))]] == [[1, 2], [(1, 2)]]
    assert observed(2, lost=3).of == {"": 2.0, "lost": 3.0}
    assert extremes({"lost": [3.0, 1.0]}) == {"least_lost": 1.0, "most_lost": 3.0, "cases_lost": 2}


def test_a_row_without_a_check_is_refused(monkeypatch):
    run("TM-eq3")
    monkeypatch.delitem(CLAIMS, "TM-eq3")
    with pytest.raises(ValueError, match="'TM-eq3' has no check"):
        run("TM-eq3")
