"""Kinds of tensors, and methods that are not here."""

import pytest
import torch

from tests.support.stand_in import OURS

ours = OURS["torch"]


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
        assert caught.value.obj is ours.linalg or "linalg" not in name
    assert not hasattr(x, "cholesky")
    assert not hasattr(x, "__array__")


def test_every_method_is_one_of_pytorch():
    inner = "entries size_ kind step base views copies small taken same kept whose as_kind fill zero copy"
    own = {n for n in vars(ours.Tensor) if not n.startswith("_")} - {*inner.split()}
    assert [n for n in sorted(own) if not hasattr(torch.Tensor, n)] == []
