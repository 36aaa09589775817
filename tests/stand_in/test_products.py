"""Sums of products agree with PyTorch's."""

import pytest

from tests.support.stand_in import agree, both_refuse


@pytest.mark.parametrize(
    "code",
    [
        *(
            "x @ y.T",
            "x @ row",
            "row @ x.T",
            "row @ row",
            "square @ x",
            "torch.matmul(cube, square)",
            "cube.mT @ cube",
        ),
        *(
            "cube @ row[:2]",
            "row @ cube",
            "x[None] @ cube[:, :, None, 0]",
            "torch.mm(x, y.T)",
            "torch.bmm(cube.mT, cube)",
        ),
        *(
            "torch.dot(row, row)",
            "torch.outer(row, row)",
            "x.mv(row)",
            "index @ index.T",
            "square.matmul(square)",
        ),
    ],
)
def test_products(code):
    agree(code)


@pytest.mark.parametrize(
    "code",
    [
        *("torch.einsum('ij,kj->ik', x, y)", "torch.einsum('ij,ij->i', x, y)", "torch.einsum('ij->ji', x)"),
        *(
            "torch.einsum('bsv,bsv->bs', cube, cube)",
            "torch.einsum('ij,ij', x, y)",
            "torch.einsum('ij,jk,kl->il', square, x, y.T)",
        ),
        *("torch.einsum('ii->i', square)", "torch.einsum('ii', square)", "torch.einsum('i,j->ij', row, row)"),
        "torch.einsum('ij->', x)",
    ],
)
def test_einsum(code):
    agree(code)


@pytest.mark.parametrize(
    "code", ["x @ y", "number @ x", "torch.einsum('ij,ik->jk', x, row)", "torch.einsum('ij,jk->ik', x, y)"]
)
def test_what_both_refuse(code):
    both_refuse(code)
