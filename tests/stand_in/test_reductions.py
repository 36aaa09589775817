"""Operations along axes agree with PyTorch's."""

import pytest

from tests.support.stand_in import agree, both_refuse

AXES = ("", "0", "-1", "0, True", "dim=1, keepdim=True")
REDUCED = ("sum", "mean", "prod", "amax", "amin", "any", "all", "var", "std", "argmax", "argmin")
LISTS = ("sum", "mean", "amax", "amin", "logsumexp")


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("axes", AXES)
def test_along_an_axis(name, axes):
    if name in ("var", "std"):
        axes = axes.replace("0, True", "0, keepdim=True")
    agree(f"x.{name}({axes})")
    agree(f"torch.{name}(cube{', ' * bool(axes)}{axes})")
    if name not in ("mean", "var", "std"):
        agree(f"index.{name}({axes})")


@pytest.mark.parametrize("name", LISTS)
def test_along_several_axes(name):
    agree(f"cube.{name}((0, 2))")
    agree(f"cube.{name}(dim=[-1, 1], keepdim=True)")


@pytest.mark.parametrize("name", ["log_softmax", "softmax", "cumsum", "logsumexp"])
def test_as_many_numbers(name):
    for axis in (0, -1):
        agree(f"x.{name}({axis})")
        agree(f"torch.{name}(cube, dim={axis})")


@pytest.mark.parametrize(
    "code",
    [
        *(),
        *("ties.amax(1)",),
        *(
            "x.std()",
            "x.std(unbiased=False)",
            "x.var(1, correction=0)",
            "x.std(0, correction=2)",
            "column.std(1)",
        ),
        *(
            "x.norm()",
            "x.norm(dim=1)",
            "x.norm(1)",
            "x.norm(3, 1)",
            "x.norm(inf, 0)",
            "ties.norm(dim=(0, 1))",
        ),
        *("torch.linalg.vector_norm(x, dim=-1)", "x.count_nonzero()", "ties.count_nonzero(1)", "mask.sum()"),
        *("mask.sum(1)", "mask.any()", "mask.all(1)", "x.sum(dtype=torch.float64)", "mask.double().mean()"),
        *(
            "mask.cumsum(1)",
            "index.cumsum(-1)",
            "x.flip(1).cumsum(1).flip(1)",
        ),
        *("torch.aminmax(x)", "torch.aminmax(x, dim=1)", "(x * mask).sum(-1) / mask.sum(-1)", "number.sum()"),
        *("number.log_softmax(0)", "edges.sum()", "edges[3:].logsumexp(0)"),
        *("torch.tensor([-inf, -inf]).logsumexp(0)", "x.masked_fill(mask, -inf).log_softmax(-1)[:, 1:2]"),
        *("x.masked_fill(mask, -inf).logsumexp(-1)", "x.masked_fill(mask, -inf).softmax(-1)"),
        *(
            "x[:, :0].sum()",
            "x[:, :0].mean()",
            "x[:, :0].sum(1)",
            "torch.softmax(x, -1, dtype=torch.float64)",
        ),
    ],
)
def test_special_cases(code):
    agree(code)


@pytest.mark.parametrize(
    "code",
    ["x.sum(2)", "index.mean()", "x.sum((0, 0))", "index.log_softmax(1)"],
)
def test_what_both_refuse(code):
    both_refuse(code)
