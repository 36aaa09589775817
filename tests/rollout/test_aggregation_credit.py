"""Discounted sums of later tokens, against a loop over tokens in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kl_companion.rollout import credit

DISCOUNTS = [0.0, 1e-3, 0.5, 0.9, 0.99, 0.999, 1.0]
LENGTHS = [1, 2, 127, 128, 129, 300, 8192]


def by_loop(x: torch.Tensor, mask: torch.Tensor, discount: float) -> torch.Tensor:
    """c_t = x_t + discount c_{t+1}, one token after the other, in float64."""
    values = (x.double() * mask).tolist()
    rows = []
    for row in values:
        ahead, sums = 0.0, []
        for value in reversed(row):
            ahead = value + discount * ahead
            sums.append(ahead)
        rows.append(sums[::-1])
    return torch.tensor(rows, dtype=torch.float64)


def batch(length: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of both signs, and a mask with holes; every row has a token."""
    draw = torch.Generator().manual_seed(length)
    mask = (torch.rand(3, length, generator=draw) < 0.8).to(torch.float64)
    mask[:, 0] = 1.0
    return torch.randn(3, length, generator=draw, dtype=torch.float64).to(dtype), mask


@pytest.mark.parametrize("discount", DISCOUNTS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_and_discount(length: int, discount: float) -> None:
    x, mask = batch(length)
    size = by_loop(x.abs(), mask, discount).max().item()
    torch.testing.assert_close(
        credit(x, mask, discount=discount), by_loop(x, mask, discount), rtol=0, atol=1e-14 * max(size, 1.0)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("discount", DISCOUNTS)
def test_the_error_does_not_grow_with_the_length(discount: float, dtype: torch.dtype) -> None:
    x, mask = batch(8192, dtype)
    x = x.abs()  # no cancellation: the relative error of the sums is that of their parts
    got, expected = credit(x, mask, discount=discount), by_loop(x, mask, discount)
    assert got.dtype == dtype
    rounding = {torch.float32: 2e-6, torch.bfloat16: 1e-2}[dtype]
    inside = expected > 0
    assert ((got.double() - expected)[inside].abs() / expected[inside]).max() < rounding


@pytest.mark.parametrize("discount", [0.5, 0.999])
def test_the_gradient_runs_the_other_way(discount: float) -> None:
    """The slope of the sum of c_s by x_t is 1 + discount + ... + discount^t inside the mask, 0 outside."""
    mask = torch.ones(1, 200, dtype=torch.float64)
    mask[0, [3, 150]] = 0
    x = torch.zeros(1, 200, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(credit(x, mask, discount=discount).sum(), x)
    powers = [math.fsum(discount**s for s in range(t + 1)) * mask[0, t].item() for t in range(200)]
    torch.testing.assert_close(slope[0], torch.tensor(powers, dtype=torch.float64), rtol=1e-13, atol=0)


@pytest.mark.parametrize("discount", [1e-30, 0.5, 0.99, 1.0])
def test_an_infinite_value_reaches_earlier_tokens_only(discount: float) -> None:
    x = torch.ones(2, 400, dtype=torch.float64)
    x[0, 250] = math.inf
    sums = credit(x, torch.ones(2, 400), discount=discount)
    assert sums[0, :251].isinf().all()
    assert sums[0, 251:].isfinite().all()
    assert torch.equal(sums[0, 251:], sums[1, 251:])
    assert credit(x, torch.ones(2, 400), discount=0.0).isinf().sum() == 1
    x[0, 200] = -math.inf
    with pytest.raises(ValueError, match=r"the credit is not a number: x is -inf at \[0, 200\]"):
        credit(x, torch.ones(2, 400), discount=discount)


@pytest.mark.parametrize("discount", [0.0, 0.9, 1.0])
def test_the_number_of_operations_does_not_depend_on_the_length(discount: float) -> None:
    """A loop over tokens would start tens of thousands of kernels."""

    class Count(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.operations += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for length in (2, 8192):
        Count.operations = 0
        with Count():
            credit(torch.ones(2, length), torch.ones(2, length), discount=discount)
        counts.append(Count.operations)
    assert abs(counts[0] - counts[1]) <= 1  # torch 2.7 needs one more for the short row
    assert max(counts) < 100
