"""Printed numbers of two papers: every check that compares them notices one altered number."""

from importlib import import_module

import pytest

from kl_book.ledger.claims import register, run
from kl_book.ledger.claims.emapg2026 import reported_tables
from kl_book.ledger.claims.ground import printed_results as printed
from tests.support.claims_table import ALTERED, CELLS, VALUES
from tests.support.sabotage import claimed, passes


def altered(id, monkeypatch):
    """Put the other number or value of a row in its place."""
    module, name, *_ = (CELLS | VALUES)[id]
    module = import_module(f"kl_book.ledger.claims.{module}")
    if id in CELLS:
        _, _, row, column, number = CELLS[id]
        table = getattr(module, name) if isinstance(name, str) else module.TABLES[name]
        numbers = table[row].split()
        assert numbers[column] != number
        numbers[column] = number
        monkeypatch.setitem(table, row, " ".join(numbers))
        return
    _, _, key, value = VALUES[id]
    value = tuple(value) if isinstance(value, list) else value
    if key is None:
        monkeypatch.setattr(module, name, value)
    else:
        monkeypatch.setitem(getattr(module, name), key, value)


@pytest.mark.parametrize("id", ALTERED)
def test_an_altered_number_is_noticed(id, monkeypatch):
    right = passes(run(id))
    altered(id, monkeypatch)
    assert passes(claimed(id).check()) != right


def test_scores_behind_the_rounded_ones():
    gain, reach = printed.percent_above, reported_tables.unreachable
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
