"""`torch` as a whole: gradients asked for, contexts, and names that PyTorch has too."""

import pytest
import torch

from tests.support.stand_in import OURS

ours = OURS["torch"]


def test_every_name_is_one_of_pytorch():
    own = ((m.__name__, n, v) for m in OURS.values() for n, v in vars(m).items() if n[0] != "_")
    found = sorted(f"{module}.{name}" for module, name, value in own if callable(value))
    assert len(found) > 150
    for dotted in found:
        at = torch
        for part in dotted.split(".")[1:]:
            assert hasattr(at, part), dotted
            at = getattr(at, part)


def test_it_has_the_version_that_it_was_compared_with():
    assert torch.__version__.split("+")[0] == ours.__version__


def test_gradients_that_are_asked_for():
    x, y = (ours.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    z = x * y
    assert [g.tolist() for g in ours.autograd.grad(z.sum(), [x, z])] == [[1.0, 2.0], [1.0, 1.0]]
    assert ours.autograd.grad(z, x, ours.tensor([1.0, 0.0]))[0].tolist() == [1.0, 0.0]
    assert ours.autograd.grad([z.sum(), x.sum()], [x])[0].tolist() == [2.0, 3.0]
    assert ours.autograd.grad(x.sum(), [x, y], allow_unused=True)[1] is None
    with pytest.raises(RuntimeError, match="allow_unused"):
        ours.autograd.grad(x.sum(), y)
    with pytest.raises(RuntimeError, match="does not require grad"):
        ours.autograd.grad(x.sum(), ours.tensor([1.0]))
    with pytest.raises(AttributeError, match="create_graph=True"):
        ours.autograd.grad(x.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="implicitly created"):
        ours.autograd.grad(z, x)


def test_what_is_compiled_is_the_function_itself():
    def f(x):
        return x

    assert ours.compile(f) is ours.jit.script(f) is ours.compile(dynamic=True)(f) is f
