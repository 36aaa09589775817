"""One statement, one verdict: rows that say the same are judged alike, and look-alikes are looked at."""

import re
from itertools import chain, combinations

import pytest

from kl_book.ledger.claims import register
from kl_book.ledger.claims.same import SAME, others
from tests.support.claims_table import VERDICT_OF

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


@pytest.mark.parametrize("group", SAME, ids=lambda g: g[0])
def test_a_group_has_one_verdict(group):
    assert len(group) > 1
    assert len({VERDICT_OF[id] for id in group}) == 1, {id: VERDICT_OF[id] for id in group}


def test_groups_are_of_rows_that_exist_and_share_none():
    ids = list(chain.from_iterable(SAME))
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
    twin = row._replace(
        id="WZ-twin",
        source="wang2025choosing",
        statement="log(q/p) + \\lambda(p/q - 1) is an unbiased value for every \\lambda",
    )
    assert look_alikes([row, twin]) == [("TM-3-lambda-value", "WZ-twin")]
