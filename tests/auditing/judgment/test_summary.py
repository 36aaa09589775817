"""What findings come to in few words, from findings that are written by hand."""

import pytest

from kl_companion.auditing.fit.findings import Condition, Finding
from kl_companion.auditing.judgment.summary import (
    HEADLINES,
    Part,
    effects,
    headline,
    level,
    main_finding,
    number,
    row,
    rows,
    terms,
)
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from tests.support.data import data

DATA = data(__file__)
ON, OFF = Condition(False, True, 1.0), Condition(True, True, 1.0)
ONE_LENGTH, FAR = Condition(False, False, 1.0), Condition(False, True, 4.0)


def case(*matches, condition=ON, units=None, **changes):
    found = {"residual": 0.0, "zero": False, "measure_values": dict, "measure_curl": lambda: 0.0, **changes}
    each = tuple({n: (units or {}).get(n, "") for n in m} for m in matches)
    return Finding(condition, matches, units=each, **found)


REVERSE, FORWARD = {"token_reverse_kl": 0.25}, {"token_forward_kl": 0.04}
REWARD = {"expected_reward": -1.0}


def written(match=None, unit="", **changes):
    """A finding of the data: of one match, or of none."""
    units = unit if isinstance(unit, dict) else dict.fromkeys(match or (), unit)
    return case(*([match] if match else []), units=units, **changes)


@pytest.mark.parametrize(
    ("wanted", "finding"), [(w, f) for w, each in DATA["headlines"].items() for f in each]
)
def test_a_headline(finding, wanted):
    assert headline(written(**finding)) == wanted
    assert wanted in HEADLINES


@pytest.mark.parametrize(("wanted", "match"), [(w, m) for w, each in DATA["levels"].items() for m in each])
def test_a_level(match, wanted):
    assert level(case(match)) == wanted


@pytest.mark.parametrize(("wanted", "finding"), DATA["rows"].items())
def test_a_row(finding, wanted):
    assert row(written(**finding)) == wanted


def test_of_equal_explanations_the_one_with_most_regularizers_is_shown_and_it_comes_first():
    found = terms(case({"token_entropy": 1.0, "expected_reward": 1.0}, REWARD | REVERSE | FORWARD))
    assert [t.objective for t in found] == ["token_reverse_kl", "token_forward_kl", "expected_reward"]
    assert found[0] == Part("token_reverse_kl", 0.25, "")
    assert terms(Finding(ON, (REVERSE,), 0.0, False, dict, lambda: 0.0)) == (
        Part("token_reverse_kl", 0.25, ""),
    )
    assert [number(x) for x in (1 / 3, 2.0)] == ["0.3333", "2"]


def test_like_rows_are_one_and_stale_samples_come_second():
    said = row(case(REVERSE))
    near, far = case(REVERSE), case(REVERSE, condition=FAR)
    stale = case(zero=True, condition=OFF)
    one_length = case(FORWARD, condition=ONE_LENGTH)  # is not what a trainer sees
    assert rows([stale, one_length, near, far]) == [("fresh samples", said), ("stale samples", row(stale))]
    apart = rows([near, case(condition=FAR, residual=0.5)])
    assert [where for where, _ in apart] == ["fresh samples, near", "fresh samples, far"]
    assert rows([case(REVERSE, condition=None)]) == [("the given worlds", said)]
    assert main_finding([one_length, near, stale]) is near
    assert main_finding([one_length]) is one_length


@pytest.mark.parametrize(
    ("finding", "wanted"),
    [
        (case(zero=True), ["On average it moves nothing; single batches are moved by noise alone."]),
        (case(REVERSE | REWARD), [OBJECTIVES["token_reverse_kl"].effect]),
        (
            case({"token_reverse_kl": -1.0}),
            ["The policy is pushed away from the reference by reverse KL, next token."],
        ),
        (case({"expected_inverse_length": 1.0}), ["Answers become longer."]),
        (case({"expected_inverse_length": -1.0}), ["Answers become shorter."]),
        (case({"expected_reward_per_token": -1.0}), [OBJECTIVES["expected_reward_per_token"].opposite]),
    ],
)
def test_what_follows_in_practice(finding, wanted):
    assert effects(finding) == wanted


def test_every_objective_is_short_enough_for_a_row():
    assert all(0 < len(o.short) <= 80 for o in OBJECTIVES.values())
