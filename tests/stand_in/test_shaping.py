"""Operations that move entries agree with PyTorch's."""

import pytest

from tests.support.stand_in import agree, both_refuse


@pytest.mark.parametrize(
    "code",
    [
        *(
            "x.view(3, 2)",
            "x.view(-1)",
            "x.reshape((3, -1))",
            "x.reshape(6)",
            "cube.view(2, -1)",
            "x.view_as(y)",
        ),
        *(
            "x.flatten()",
            "cube.flatten(1)",
            "cube.flatten(0, 1)",
            "x.unflatten(1, (3, 1))",
            "x.unflatten(1, (-1, 3))",
        ),
        *(
            "x.unsqueeze(0)",
            "x.unsqueeze(-1)",
            "column.squeeze()",
            "column.squeeze(-1)",
            "x.squeeze(0)",
            "x.T",
            "x.t()",
        ),
        *(
            "cube.mT",
            "cube.transpose(0, 2)",
            "cube.permute(2, 0, 1)",
            "cube.permute((1, 0, 2))",
            "cube.movedim(0, -1)",
        ),
        *(
            "x.expand(4, 2, 3)",
            "column.expand(-1, 3)",
            "row.expand_as(x)",
            "number.expand(2, 2)",
            "x.repeat(2, 1)",
        ),
        *(
            "row.repeat(2, 2)",
            "x.repeat_interleave(2)",
            "x.repeat_interleave(2, dim=1)",
            "x.roll(1, 1)",
            "x.roll(-2, 0)",
        ),
        *(
            "x.repeat_interleave(torch.tensor([1, 2]), 0)",
            "x.roll(1)",
            "x.flip(0)",
            "x.flip((0, 1))",
            "x.flip(0, 1)",
        ),
        *("row.expand(2, 3) + x", "torch.broadcast_tensors(row, column)", "x.contiguous()", "x.detach() * y"),
    ],
)
def test_shapes(code):
    agree(code)


@pytest.mark.parametrize(
    "code",
    [
        *(
            "torch.cat([x, y])",
            "torch.cat((x, column), dim=1)",
            "torch.cat([x, index], -1)",
            "torch.stack([x, y])",
        ),
        *(
            "torch.stack([x, y], -1)",
            "torch.stack([x, y], 1)",
            "x.split(2, 1)",
            "x.split([1, 2], dim=1)",
            "x.chunk(2, 1)",
        ),
        *(
            "x.unbind(1)",
            "torch.unbind(cube)",
            "x.narrow(1, 1, 2)",
            "x.select(1, 2)",
            "x.diff()",
            "x.diff(dim=0)",
        ),
        *(
            "torch.cat([x[:, :1], x], 1).sum(0)",
            "torch.stack([number, row.sum()])",
            "list(x)",
            "[r.sum() for r in x]",
        ),
    ],
)
def test_several_tensors(code):
    agree(code)


@pytest.mark.parametrize(
    "code",
    [
        *("x.view(4)", "x.view(-1, 4)", "x.expand(3, 3)", "torch.cat([x, row])", "torch.stack([x, row])"),
        *("x.split([1, 1], 1)", "x.permute(0)", "x.index_select(1, places + 2)"),
    ],
)
def test_what_both_refuse(code):
    both_refuse(code)
