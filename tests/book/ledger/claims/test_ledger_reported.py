"""The arithmetic of the reported experiments: every check notices one altered number."""

import pytest

from kl_book.ledger.claims import CLAIMS, register, run
from kl_book.ledger.claims.emapg2026 import reported_comparisons, reported_tables
from kl_book.ledger.claims.ground import printed_results as printed
from kl_book.ledger.claims.ground import scores
from tests.support.claims_table import ARITHMETIC
from tests.support.data import data
from tests.support.sabotage import passes

DATA = data(__file__)
CELLS = DATA["cells"]
DATA = {  # row of the register: (module, name, another value)
    "EMA-abstract-average": (reported_tables, "AVERAGE_GAIN", {"abstract": "33.4"}),
    "EMA-5.3-vocabulary": (reported_comparisons, "VOCABULARIES", {"another model": 32_000}),
    "EMA-exp-math-sets": (reported_comparisons, "MATH_SETS_OF_THE_TEXT", ("MATH500", "Minerva")),
    "EMA-exp-search-sets": (reported_comparisons, "GENERAL", ("NQ", "TriviaQA")),
    "EMA-tab3-sets": (reported_comparisons, "MATH_SETS_OF_THE_CAPTION", "five"),
    "EMA-appA-period": (reported_comparisons, "PERIOD", {**printed.PERIOD, "cited code": "11"}),
}


def test_each_of_them_has_an_alteration():
    assert {*CELLS, *DATA} == set(ARITHMETIC)


@pytest.mark.parametrize("id", ARITHMETIC)
def test_an_altered_number_is_noticed(id, monkeypatch):
    right = passes(run(id))
    if id in CELLS:
        table, row, column, number = CELLS[id]
        numbers = getattr(printed, table)[row].split()
        assert numbers[column] != number
        numbers[column] = number
        monkeypatch.setitem(getattr(printed, table), row, " ".join(numbers))
    else:
        module, name, value = DATA[id]
        monkeypatch.setattr(module, name, value)
    assert passes(CLAIMS[id].check()) != right


def test_scores_behind_the_rounded_ones():
    gain, reach = scores.percent_above, reported_tables.unreachable
    assert gain(3.0, 2.0) == pytest.approx(50)
    assert reported_tables.share(1.0, 3.0, 4.0) == pytest.approx(50)
    assert reach(gain, "46.3", 0.401, 0.274) == 0.0
    assert reach(gain, "46.9", 0.401, 0.274) == pytest.approx(46.85 - gain(0.4015, 0.2735))
    assert reach(gain, "40", 0.401, 0.274) == pytest.approx(gain(0.4005, 0.2745) - 40.5)


def test_rows_of_the_tables_are_those_of_the_register():
    for table, rows in ((2, printed.TABLE_2), (4, printed.TABLE_4)):
        for name in set(rows) - {printed.GAIN}:
            said = register()[f"EMA-tab{table}-{name}"].statement.rpartition(": ")[2]
            assert said.replace(" |", "") == rows[name]
        for percent in rows[printed.GAIN].split()[:-1]:
            assert f"{percent}%" in register()[f"EMA-tab{table}-Improvement"].statement
    for name, numbers in printed.TABLE_3.items():
        said = register()[f"EMA-tab3-{name.replace(' ', '')}"].statement
        assert [x for x in said.replace(",", "").split() if x.startswith("0.")] == numbers.split()[:3]
