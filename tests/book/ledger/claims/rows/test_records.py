"""Records of rows: what is read and refused; rows that say the same are judged alike."""

import re
from itertools import chain, combinations

import pytest

from kl_book.ledger.claims import register
from kl_book.ledger.claims.rows import Row, errata, others, parsed
from tests.support.claims_table import VERDICT_OF

GROUPS = [(row.id, *others(row.id)) for row in register().values() if not row.same and others(row.id)]
RECORDS = r"""
rows:
  TM-a:
    at: {location: '3', kind: identity, unit: difference}
    statement: log(\pi) is a number
    note: 'In {{cases}} cases the KL is {{kl:.2f}}, at ({{policy:.1f}}).'
  TM-b:
    at: {location: 3.1, kind: identity, same: TM-a}
    statement: another
errata:
  - title: A title
    rows: [TM-a, TM-b]
    consequence: slip
    printed: Section 3 has a sign.
    why: It is a slip.
    charitable: It is right elsewhere.
"""
ALIKE = 0.7  # share of the words and symbols that two statements have in common
NOT_THE_SAME = {
    frozenset(("EMA-eq147", "EMA-J2-apa")): "losses whose gradients differ in a sign",
    frozenset(("RPG-5-grpo-clip", "RPG-H-grpo-clip")): "two settings of one run, one of them a slip",
}
_SKIPPED = frozenset(
    re.findall(r"\w+", "the a an of is its it in that and to with for as on by this these are")
)
_PRINTED_NUMBERS = re.compile(r"EMA-tab([2-7]|9|10)-|WZ-table-")  # rows of one table share their words


def words(row):
    """Words and symbols of a statement, in one notation for all sources."""
    text = row.statement.replace("||", ",")
    if row.source in ("wang2025choosing", "shah2025comedy"):
        text = re.sub(r"k_(\d)", r"K\1", re.sub(r"\bp\b", r"\\pi_ref", re.sub(r"\bq\b", r"\\pi", text)))
    return frozenset(re.findall(r"\\?[a-zA-Z_]+\d*|\d+", text.lower())) - _SKIPPED


def look_alikes(rows):
    """Pairs of rows that share most of their words."""
    found = []
    said = [(row.id, words(row)) for row in rows if not _PRINTED_NUMBERS.match(row.id)]
    for (one, x), (other, y) in combinations(said, 2):
        if x and y and len(x & y) >= ALIKE * len(x | y):
            found.append((one, other))
    return found


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g[0])
def test_a_group_has_one_verdict(group):
    assert len(group) > 1
    assert len({VERDICT_OF[id] for id in group}) == 1, {id: VERDICT_OF[id] for id in group}


def test_groups_are_of_rows_that_exist_and_share_none():
    ids = list(chain.from_iterable(GROUPS))
    assert set(ids) <= set(register())
    assert len(ids) == len(set(ids))
    assert others("TM-eq2") == ("WZ-naive-k1", "SH-K1-path", "EMA-E2-K1", "FRPO-B1-k1grad")
    assert others("TM-KL-def") == ()


def test_look_alikes_with_two_verdicts_are_explained():
    pairs = look_alikes(register().values())
    unequal = {frozenset(pair) for pair in pairs if VERDICT_OF[pair[0]] != VERDICT_OF[pair[1]]}
    assert unequal == set(NOT_THE_SAME)


def test_the_same_words_in_two_notations_are_alike():
    row = register()["TM-3-lambda-value"]
    twin = row.model_copy(
        update={
            "id": "WZ-twin",
            "source": "wang2025choosing",
            "statement": "log(q/p) + \\lambda(p/q - 1) is an unbiased value for every \\lambda",
        }
    )
    assert look_alikes([row, twin]) == [("TM-3-lambda-value", "WZ-twin")]


# what is read


def test_a_record_has_its_place_its_words_and_what_they_need():
    rows, corrections = parsed(RECORDS, "tang2025pitfalls")
    row = rows["TM-a"]
    assert row.place == {
        **{"id": "TM-a", "source": "tang2025pitfalls", "location": "3", "kind": "identity"},
        **{"statement": r"log(\pi) is a number", "chapter": ""},
    }
    assert (row.how, row.unit, rows["TM-b"].same) == ("enumeration", "difference", "TM-a")
    assert [(e.source, e.rows, e.consequence) for e in corrections] == [
        ("tang2025pitfalls", ("TM-a", "TM-b"), "slip")
    ]


def test_gaps_are_filled_and_must_fit():
    row = parsed(RECORDS, "tang2025pitfalls").rows["TM-a"]
    numbers = {"cases": 3, "kl": 0.123, "policy": [0.25, 0.75]}
    assert row.filled(numbers)["note"] == "In 3 cases the KL is 0.12, at (0.2, 0.8)."
    with pytest.raises(
        ValueError, match=r"'TM-a' has gaps for \['cases', 'kl', 'policy'\], its check gave \['kl'\]"
    ):
        row.filled({"kl": 1.0})
    with pytest.raises(ValueError, match=r"its check gave .*'more'"):
        row.filled({**numbers, "more": 1})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("note:", "notes:", r"tang2025pitfalls.yml, line 3: notes: Extra inputs"),
        ("kind: identity, unit", "kind: identitty, unit", r"line 3: kind: .*got 'identitty'"),
        ("unit: difference", "unit: meters", r"line 3: unit: .*got 'meters'"),
        ("    statement: another\n", "", r"line 7: statement: Field required"),
        ("TM-b:\n", "TM-a:\n", r"line 7: row 'TM-a' stands twice"),
        (
            "[TM-a, TM-b]",
            "[TM-b, TM-a]",
            r"line 11: erratum of \['TM-b', 'TM-a'\], expected rows of this file in order",
        ),
        ("[TM-a, TM-b]", "[TM-c]", r"line 11: erratum of \['TM-c'\]"),
        ("[TM-a, TM-b]", "[]", r"line 11: erratum of \[\]"),
        ("consequence: slip", "consequence: none", r"line 11: consequence: .*got 'none'"),
    ],
)
def test_what_is_no_record_is_named_with_its_line(old, new, message):
    assert old in RECORDS
    with pytest.raises(ValueError, match=message):
        parsed(RECORDS.replace(old, new), "tang2025pitfalls")


def test_a_row_is_in_one_correction():
    with pytest.raises(ValueError, match=r"line 17: erratum of \['TM-b'\].*each in one"):
        parsed(
            RECORDS + RECORDS.partition("errata:\n")[2].replace("[TM-a, TM-b]", "[TM-b]"), "tang2025pitfalls"
        )


def test_rows_that_are_named_exist():
    rows = register()
    named = [x for row in rows.values() for x in (row.same, row.check) if x]
    assert named
    assert set(named) <= set(rows)
    assert not any(rows[x].same for row in rows.values() if (x := row.same))  # groups have one first row
    assert not any(rows[x].check for row in rows.values() if (x := row.check))
    assert all(row.needs for row in rows.values() if row.how == "reading")
    words = ("note", "condition", "given", "correction", "counterexample", "practice", "needs", "record")
    assert not any(getattr(row, name) for row in rows.values() if row.check for name in words)


def test_what_changes_a_result_is_corrected_first():
    consequences = [e.consequence for e in errata()]
    order = ("result", "derivation", "slip", "bibliography")
    assert [order.index(c) for c in consequences] == sorted(order.index(c) for c in consequences)
    assert errata()[0].source == "emapg2026"
    assert isinstance(register()["TM-eq3"], Row)
