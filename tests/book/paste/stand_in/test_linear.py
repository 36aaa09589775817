"""Least squares agree with PyTorch's, also where columns of a matrix repeat."""

import pytest
import torch

from kl_book.paste.stand_in import linear
from kl_book.paste.stand_in.kinds import FLOAT64
from kl_book.paste.stand_in.tensor import Tensor
from tests.support.stand_in import OURS

ours = OURS["torch"]


def matrices(count, rows, columns, seed=0):
    found = torch.randn(
        count, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return found, ours.tensor(found.tolist())


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_least_squares(columns):
    (a, our_a), (b, our_b) = matrices(4, 9, columns), matrices(4, 9, 1, seed=1)
    want = torch.linalg.lstsq(a, b, driver="gelsd").solution
    found = ours.linalg.lstsq(our_a, our_b, driver="gelsd").solution
    torch.testing.assert_close(
        torch.tensor(found.tolist(), dtype=torch.float64), want, rtol=1e-11, atol=1e-13
    )


def test_of_columns_that_repeat_the_shortest_solution_counts():
    column = [[1.0], [2.0], [-1.0]]
    a = [[x, 3 * x, 0.0] for (x,) in column]
    want = torch.linalg.lstsq(
        torch.tensor(a, dtype=torch.float64), torch.tensor(column, dtype=torch.float64), driver="gelsd"
    ).solution
    found = ours.linalg.lstsq(ours.tensor(a), ours.tensor(column)).solution
    torch.testing.assert_close(
        torch.tensor(found.tolist(), dtype=torch.float64), want, rtol=1e-12, atol=1e-14
    )
    assert found.tolist() == [[pytest.approx(0.1)], [pytest.approx(0.3)], [0.0]]


def test_columns_that_nearly_repeat_keep_their_digits():
    a = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 1e-7], [1.0, 1.0 - 1e-7], [1.0, 1.0]]).double()
    a[1, 1], a[2, 1] = 1 + 1e-7, 1 - 1e-7
    b = a @ torch.tensor([[2.0], [-1.0]]).double()
    found = ours.linalg.lstsq(ours.tensor(a.tolist()), ours.tensor(b.tolist())).solution.tolist()
    assert found == [[pytest.approx(2, abs=1e-7)], [pytest.approx(-1, abs=1e-7)]]


def test_what_counts_as_zero_can_be_said():
    a = [[1.0, 0.0], [0.0, 1e-5]]
    (x,), (y,) = ours.linalg.lstsq(ours.tensor(a), ours.tensor([[1.0], [1.0]]), rcond=1e-4).solution.tolist()
    assert (x, y) == (1.0, 0.0)


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_ranks(rank):
    draw = torch.Generator().manual_seed(rank)
    left, right = (torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((4, rank), (rank, 6)))
    product = left @ right
    assert int(torch.linalg.matrix_rank(product)) == rank
    assert linear.matrix_rank(Tensor(product.flatten().tolist(), (4, 6), FLOAT64)).entries == [rank]
