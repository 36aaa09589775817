"""Which of few rows each row of a batch is: there and back."""

from kl_companion.stand_in.copies import Copies, copies_of

WHICH = (0, 0, 1, 2, 2, 2, 1)


def test_the_entries_of_a_batch_and_what_all_copies_add():
    copies = Copies(WHICH, 3)
    assert copies.counts == [2, 2, 3]
    assert copies.spread([10, 11, 20, 21, 30, 31])[2:8] == [10, 11, 20, 21, 30, 31]
    assert copies.spread([1, 2, 3]) == [1, 1, 2, 3, 3, 3, 2]
    assert copies.added([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]) == [3.0, 68.0, 56.0]
    assert copies.added([1.0, 5.0] * 7) == [2.0, 10.0, 2.0, 10.0, 3.0, 15.0]
    assert copies.of_each([2.0, 4.0, 6.0, 8.0, 9.0, 12.0]) == [1.0, 2.0, 3.0, 4.0, 3.0, 4.0]


def test_parts_of_rows_are_a_batch_of_their_own():
    copies = Copies(WHICH, 3)
    halves = copies.in_parts(2)
    assert halves.spread([*range(6)]) == copies.spread([*range(6)])
    assert halves is copies.in_parts(2)
    assert halves.whole is copies
    assert copies.in_parts(1) is copies


def test_an_index_that_repeats_nothing_or_leaves_a_row_out_makes_no_batch():
    assert copies_of((0, 1, 2), 3) is None
    assert copies_of((0, 0, 1, 1), 3) is None
    assert copies_of((), 0) is None
    assert copies_of((0, 1, 1, 2), 3) is copies_of((0, 1, 1, 2), 3)
