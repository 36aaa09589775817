"""Function modes see what PyTorch's see: functions, methods and operators by their names."""

import pytest
import torch
import torch.overrides

from tests.support.stand_in import OURS, near


def seen(torch_, mode, code):
    names = []

    class Watching(mode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(getattr(func, "__name__", "?"))
            return func(*args, **(kwargs or {}))

    x, y = (torch_.tensor([row], dtype=torch_.float64) for row in ([1.0, 2.0], [3.0, 1.0]))
    with Watching():
        result = eval(code, {"torch": torch_, "x": x, "y": y})
    return names, result.tolist()


@pytest.mark.parametrize(
    "code",
    [
        *(
            "torch.exp(x)",
            "x.exp()",
            "x.topk(1).values.float()",
            "torch.topk(x, k=1)[0]",
            "x.sum(-1).double()",
        ),
        *("torch.where(x > y, x, y)", "x.clamp(min=1)", "torch.log_softmax(x, -1)", "x.half()", "x.detach()"),
    ],
)
def test_names(code):
    want = seen(torch, torch.overrides.TorchFunctionMode, code)
    found = seen(OURS["torch"], OURS["torch.overrides"].TorchFunctionMode, code)
    assert near(found[1], want[1])
    assert set(found[0]) <= set(want[0])
    told = ("topk", "float", "half", "double")
    assert [n for n in want[0] if n in told] == [n for n in found[0] if n in told]


def test_a_mode_may_change_what_is_called():
    ours = OURS["torch"]

    class Doubled(OURS["torch.overrides"].TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs) * 2

    x = ours.tensor([1.0])
    with Doubled():
        assert (x + 1).tolist() == [4.0]
        with Doubled():
            assert x.neg().tolist() == [-8.0]
    assert (x + 1).tolist() == [2.0]


def test_an_error_leaves_the_mode_as_it_was():
    ours = OURS["torch"]
    with OURS["torch.overrides"].TorchFunctionMode():
        with pytest.raises(IndexError):
            ours.tensor([1.0]).sum(3)
        assert ours.tensor([1.0]).neg().tolist() == [-1.0]


def test_operators_are_names():
    ops = OURS["torch"].ops
    assert ops.aten.zeros.default is ops.aten.zeros.default
    assert ops.aten.zeros.default is not ops.aten.ones.default
