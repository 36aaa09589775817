"""Corrected forms: each passes the check that the printed form fails, and no other form does in its place.

The statements behind a check are mutated until one sign and one factor of the corrected form are seen to
matter: the corrected error leaves the tolerance, and the printed one stays what it was, up to rounding:
least squares are not the same to the last bit in every run.
"""

import math

import pytest
import torch

from kl_book.ledger.claims import register, run
from kl_book.ledger.claims.ground import synthetic_task
from kl_book.ledger.claims.standard import TOLERANCE
from tests.support.claims_table import CORRECTED, UNCORRECTED, VERDICT_OF
from tests.support.corrected_mutants import edited, mutants_behind, outcome
from tests.support.data import data
from tests.support.sabotage import claimed, everywhere, forget

KINDS = {"sign", "factor"}
# one task and two heads of the synthetic sweep instead of sixteen and seven
SMALLER = ("EMA-fig4", "EMA-G2-unbiased")
SYNTHETIC = (*SMALLER, "EMA-G2-critical")
# rows of which one mutant is enough: they share all but the sets of tokens with EMA-eq25-26 and EMA-eq27
ONE = (
    *("EMA-abstract-topk", "EMA-alg1", "EMA-alg2", "EMA-5.3-anyset", "EMA-fig2"),
    *("EMA-tab1-TopkR", "EMA-tab1-TopkF"),
)
# statements whose mutants are tried first: those of what stands before them change the printed form, too
FIRST = {
    "VY-eq15": "_not_of_the_noise",
    "VY-3-Ginf-small": "_pooled",
    "EMA-tab6-Pearson": "best_policy",
}
# rows whose corrected form the mutators do not reach alone
BY_HAND = data(__file__)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    forget()


def made_smaller(monkeypatch):
    few = [synthetic_task.task(0.5, 0)]
    everywhere(monkeypatch, "tasks", lambda tasks: lambda: iter(few))
    everywhere(monkeypatch, "HEADS", lambda heads: heads[:2])


def killed(id, mutant, printed):
    """Whether the check notices: the corrected form fails, and the printed one as before."""
    found = outcome(id, mutant)
    if found is None or found.corrected is None:
        return False
    return found.corrected > TOLERANCE and math.isclose(found.printed, printed, rel_tol=1e-9)


def test_every_failing_row_has_a_corrected_form_or_is_named():
    failing = {id for id in register() if VERDICT_OF[id] in ("misprint", "does not hold as worded")}
    assert failing - set(CORRECTED) == set(UNCORRECTED)
    assert {*BY_HAND, *SMALLER, *ONE, *FIRST} <= set(CORRECTED)


# `make test` tries the mutants of one row per paper and those by hand; `make reliability` those of all rows
_first = {register()[id].source: id for id in reversed(CORRECTED)}
_everyday = {*_first.values(), *BY_HAND} - {*SYNTHETIC, "EMA-5.3-lowervar", "EMA-eq137-138"}
ROWS = [pytest.param(id, marks=[] if id in _everyday else pytest.mark.reliability, id=id) for id in CORRECTED]


@pytest.mark.parametrize("id", ROWS)
def test_the_corrected_form_passes_and_a_changed_one_does_not(id, monkeypatch):
    evidence = run(id)
    assert evidence.corrected <= TOLERANCE < evidence.printed
    if id in SMALLER:
        made_smaller(monkeypatch)
        evidence = claimed(id).check()
        assert evidence.corrected <= TOLERANCE < evidence.printed
    if id in BY_HAND:
        for place in BY_HAND[id]:
            assert killed(id, edited(id, *place), evidence.printed), place
        return
    missing = set(KINDS)
    for mutant in mutants_behind(id, FIRST.get(id)):
        if mutant.kind in missing and killed(id, mutant, evidence.printed):
            missing.remove(mutant.kind)
        if not missing or (id in ONE and missing != KINDS):
            return
    pytest.fail(f"no {' and no '.join(missing)} of the corrected form matters to the check")


def test_an_unchanged_statement_is_no_mutant():
    """The machinery by itself changes nothing: neither the check nor a statement behind it, run again."""
    for id, name, text in (
        ("EMA-eq10", "sign_of_the_sequence_estimate", "same(-w.E(w.l), w.kl)"),
        ("EMA-eq25-26", "algorithm", "small = at_the_reference()"),
    ):
        again = outcome(id, edited(id, name, text, text))
        assert again == run(id)
        assert not killed(id, edited(id, name, text, text), run(id).printed)
