"""What a tensor says of itself, and gradients through graphs, agree with PyTorch's."""

import pytest

from tests.support.stand_in import OURS, agree, both_refuse

ours = OURS["torch"]


@pytest.mark.parametrize(
    "code",
    [
        *(
            "list(x.shape)",
            "x.size(1)",
            "x.dim()",
            "x.ndim",
            "x.numel()",
            "len(x)",
            "x.shape[-1]",
            "x.shape.numel()",
        ),
        *(
            "x.is_floating_point()",
            "x[0, 0].item()",
            "x.tolist()",
            "float(number)",
            "int(number)",
            "bool(number > 0)",
        ),
        *(
            "x.requires_grad",
            "x.is_leaf",
            "(x * 2).is_leaf",
            "x.detach().requires_grad",
            "f'{number:.2f}'",
            "1.75 in number",
        ),
        *(
            "x.long()",
            "x.bool()",
            "edges[3:].bool()",
            "index.double()",
            "mask.long()",
            "index.to(torch.float64)",
        ),
        *(
            "x.to(torch.int64)",
            "x.to(index)",
            "index.type_as(x)",
            "x.to('cpu')",
            "x.cpu()",
            "x.clone()",
            "x.data * y",
        ),
        *(
            "[i for i in places.tolist()]",
            "[[1, 2, 3][i] for i in places]",
            "x.detach().clone()",
            "x.double()",
        ),
    ],
)
def test_what_it_is(code):
    agree(code)


@pytest.mark.parametrize(
    "code", ["x.item()", "bool(x)", "len(number)", "list(number)", "x.sum().backward().item()"]
)
def test_what_both_refuse(code):
    both_refuse(code)


def test_every_floating_kind_is_float64():
    x = ours.tensor([0.1], dtype=ours.bfloat16)
    assert x.dtype == ours.float32 == ours.float64
    assert x.half() is x
    assert repr(x.dtype) == "torch.float64"
    assert ours.finfo(x.dtype).eps == 2.0**-52
    with pytest.raises(TypeError, match="requires a floating point dtype"):
        ours.finfo(ours.long)
    assert ours.iinfo(ours.long).max == 2**63 - 1


def test_what_is_not_here_is_said_with_the_command():
    x = ours.tensor([1.0])
    for name, use in {
        "Tensor.cholesky": lambda: x.cholesky(),
        "torch.fft": lambda: ours.fft,
        "torch.linalg.svd": lambda: ours.linalg.svd(x),
        "torch.nn.functional.ctc_loss": lambda: ours.nn.functional.ctc_loss,
    }.items():
        with pytest.raises(AttributeError, match=f"^{name} does not run in this page") as caught:
            use()
        assert "kl-companion audit loss.py:NAME" in str(caught.value)
    assert not hasattr(x, "cholesky")
    assert not hasattr(x, "__array__")
