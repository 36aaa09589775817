"""Methods and operators are those of PyTorch's tensors."""

import pytest
import torch

from tests.support.stand_in import OURS, agree

ours = OURS["torch"]


def test_every_method_is_one_of_pytorch():
    own = {n for n in vars(ours.Tensor) if not n.startswith("_")}
    inner = {
        "entries",
        "size_",
        "kind",
        "step",
        "base",
        "views",
        "copies",
        "small",
        "taken",
        "same",
        "kept",
        "whose",
        "as_kind",
        "fill",
        "zero",
        "copy",
        "scatter",
    }
    assert [n for n in sorted(own - inner) if not hasattr(torch.Tensor, n)] == []


@pytest.mark.parametrize(
    "code",
    [
        *(
            "x.reshape_as(y)",
            "x.swapaxes(0, 1)",
            "x.subtract(y)",
            "x.multiply(y)",
            "x.divide(p)",
            "x.negative()",
        ),
        *(
            "x.absolute()",
            "torch.concat([x, y])",
            "torch.greater(x, y)",
            "torch.less(x, y)",
            "x.where(mask, y)",
        ),
        *(
            "z = x * 1; z.copy_(row); z",
            "z = x * 1; z.fill_(2.0); z",
            "z = index.clone(); z.zero_(); z",
            "x.clip(0)",
        ),
        "z = p * 1; z /= 2; z **= 2; z",
    ],
)
def test_under_other_names(code):
    agree(code)
