"""Expressions agree with PyTorch's: values, shapes, kinds, gradients, and what both refuse."""

import pytest

from tests.support.data import data
from tests.support.stand_in import agree, both_refuse

GROUPS = data(__file__, "expressions")


def expressions(kind):
    """Lines of that kind of every group, each for every name of its group."""
    return [
        line.replace("NAME", name)
        for group in GROUPS.values()
        for name in group.get("names", "-").split()
        for line in group.get(kind, "").splitlines()
    ]


@pytest.mark.parametrize("code", expressions("agree"))
def test_both_give_the_same(code):
    agree(code)


@pytest.mark.parametrize("code", expressions("refuse"))
def test_both_refuse(code):
    both_refuse(code)


def test_a_slope_that_is_not_here_is_said():
    with pytest.raises(AttributeError, match=r"gradient of torch\.lgamma"):
        agree("torch.lgamma(p)")
    agree("torch.lgamma(p.detach())")
    agree("torch.lgamma(index)")


@pytest.mark.parametrize(
    "code", ["F.cross_entropy(x, p, label_smoothing=0.1)", "F.dropout(x)", "F.pad(x, (1, 1), mode='reflect')"]
)
def test_what_is_not_here_is_said(code):
    with pytest.raises(NotImplementedError, match="does not run in this page"):
        agree(code)


@pytest.mark.parametrize(
    "code", ["z = x * 1; w = z[0]; w.mul_(2); z", "z = x * 1; w = z.view(-1); z.add_(1); w"]
)
def test_memory_that_two_tensors_show_is_not_written_to(code):
    with pytest.raises(AttributeError, match="another tensor shows too") as caught:
        agree(code)
    assert "kl-companion audit loss.py:NAME" in str(caught.value)
