"""Gradients through graphs, and the switch that keeps steps or not."""

import pytest

from tests.support.stand_in import OURS

ours = OURS["torch"]


def test_backward_adds_up():
    x = ours.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        (x * x).sum().backward()
    assert x.grad.tolist() == [4.0, 8.0]
    y = x * 3
    y.backward(ours.tensor([1.0, -1.0]))
    assert x.grad.tolist() == [7.0, 5.0]
    with pytest.raises(RuntimeError, match="implicitly created only for scalar"):
        (x * 2).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        x.detach().sum().backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (x * 2).backward(ours.tensor(1.0))


def test_contexts():
    x = ours.tensor([1.0], requires_grad=True)

    @ours.no_grad()
    def fixed():
        return x * 2

    @ours.inference_mode
    def fixed_too():
        with ours.enable_grad():
            assert (x * 2).requires_grad
        return x * 2

    assert not fixed().requires_grad
    assert not fixed_too().requires_grad
    with ours.no_grad():
        assert not ours.is_grad_enabled()
        with ours.set_grad_enabled(True):
            assert (x * 2).requires_grad
        assert not (x * 2).requires_grad
    ours.set_grad_enabled(False)
    assert not ours.is_grad_enabled()
    ours.set_grad_enabled(True)
    assert (x * 2).requires_grad
    with ours.autocast("cuda"), ours.amp.autocast("cpu"):
        assert (x * 2).requires_grad
