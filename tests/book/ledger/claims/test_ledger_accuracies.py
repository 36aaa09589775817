"""The printed accuracies of zhang2025design: every check that compares them notices one altered number."""

import pytest

from kl_book.ledger.claims import CLAIMS, run
from kl_book.ledger.claims.ground import printed_accuracies as printed
from tests.support.claims_table import ALTERED
from tests.support.data import data
from tests.support.sabotage import passes

DATA = data(__file__)
CELLS = DATA["cells"]
LETTERS = {  # row of the register: (name, key, another value)
    "RPG-5-subfigures": ("PANELS", "reward", "c"),
    "RPG-H-grpo-clip": ("GRPO_CLIP", "scripts", (0.1, 0.1)),
    "RPG-5-grpo-clip": ("GRPO_CLIP", "scripts", (0.1, 0.1)),
    "RPG-fig2-caption": ("FIGURE_2_TITLES", "case A < 0", 1),
}


def test_each_of_them_has_an_alteration():
    assert {*CELLS, *LETTERS} == set(ALTERED)


@pytest.mark.parametrize("id", ALTERED)
def test_an_altered_number_is_noticed(id, monkeypatch):
    right = passes(run(id))
    if id in CELLS:
        table, method, column, number = CELLS[id]
        numbers = printed.TABLES[table][method].split()
        assert numbers[column] != number
        numbers[column] = number
        monkeypatch.setitem(printed.TABLES[table], method, " ".join(numbers))
    else:
        name, key, value = LETTERS[id]
        monkeypatch.setitem(getattr(printed, name), key, value)
    assert passes(CLAIMS[id].check()) != right


def test_every_row_has_two_numbers_per_benchmark():
    for table, rows in printed.TABLES.items():
        assert {len(numbers.split()) for numbers in rows.values()} == {2 * len(printed.BENCHMARKS[table])}
    assert len(printed.scores()) == 18 + 24 + 12 + 16 + 36
