"""Largest entries, their places, and order agree with PyTorch's."""

import pytest

from tests.support.stand_in import agree, both_refuse


@pytest.mark.parametrize(
    "code",
    [
        "x.max()",
        "x.min()",
        "x.max(1)",
        "x.min(dim=0)",
        "x.max(1, keepdim=True)",
        "torch.max(x, y)",
        "x.max(y)",
        "ties.max(0)",
        "ties.max()",
        "x.max(dim=-1).values",
        "x.max(-1)[1]",
        "torch.min(x, row)",
        "x.topk(2)",
        "ties.topk(2, dim=0)",
        "x.topk(2, largest=False)",
        "x.sort(descending=True)",
        "x.sort(0)",
        "x.argsort(descending=True)",
        "number.max()",
        "edges.max()",
    ],
)
def test_special_cases(code):
    agree(code)


@pytest.mark.parametrize("name", ["sort", "argsort"])
@pytest.mark.parametrize("axis", [0, -1])
def test_order(name, axis):
    agree(f"x.{name}({axis})")
    agree(f"torch.{name}(cube, dim={axis}, descending=True)")


@pytest.mark.parametrize("code", ["x[:, :0].max()", "x.topk(4)", "x.max(2)"])
def test_what_both_refuse(code):
    both_refuse(code)
