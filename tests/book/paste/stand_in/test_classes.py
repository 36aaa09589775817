"""Losses that are written as classes: modules, and functions with a backward pass of their own."""

import pytest
import torch

from tests.support.stand_in import OURS

ours = OURS["torch"]


def straight(torch_):
    class Straight(torch_.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale, y):
            ctx.save_for_backward(x, y)
            ctx.scale = scale
            return x.sign() * scale, (x * y).sum()

        @staticmethod
        def backward(ctx, first, second):
            x, y = ctx.saved_tensors
            assert ctx.needs_input_grad == (True, False, False)
            return first * ctx.scale + second * y, None, second * x

    x = torch_.tensor([1.5, -2.0], requires_grad=True)
    sign, total = Straight.apply(x, 3.0, torch_.tensor([1.0, 10.0]))
    (g,) = torch_.autograd.grad((sign * x).sum() + total * 2, x)
    return sign.tolist(), total.item(), g.tolist()


def test_functions_of_their_own():
    assert straight(ours) == straight(torch)


def test_a_function_of_what_is_held_fixed():
    class Twice(ours.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

    assert not Twice.apply(ours.tensor([1.0])).requires_grad


def scaled(torch_):
    class Scaled(torch_.nn.Module):
        def __init__(self, beta):
            super().__init__()
            self.beta, self.inner = beta, None
            self.scale = torch_.nn.Parameter(torch_.tensor([2.0]))
            self.register_buffer("shift", torch_.tensor([1.0]))

        def forward(self, x):
            return self.beta * x * self.scale + self.shift

    module = Scaled(0.5).to("cpu").train()
    loss = module(torch_.tensor([3.0])).sum()
    loss.backward()
    assert module.training
    assert not module.eval().training
    return loss.item(), [p.grad.tolist() for p in module.parameters()]


def test_modules():
    assert scaled(ours) == scaled(torch)


def test_a_module_without_a_forward_pass():
    with pytest.raises(NotImplementedError, match="missing the required"):
        ours.nn.Module()(1)


def test_a_function_that_writes_over_its_inputs_is_refused():
    class Over(ours.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)

    with pytest.raises(AttributeError, match="writes over its inputs"):
        Over.apply(ours.tensor([1.0]))
