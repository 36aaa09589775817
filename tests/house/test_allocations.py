"""The counter of memory counts what it says: known sequences of allocations give known numbers."""

import pytest
import torch

from tests.support.allocations import Allocations

KB = 1024


def of(kilobytes):
    return torch.empty(kilobytes * KB // 4)


def counted(steps):
    outside = of(64)
    with Allocations() as seen:
        kept = steps(outside)
    numbers = seen.live // KB, seen.peak // KB, seen.largest // KB, seen.made // KB
    del kept
    assert seen.live == 0
    return numbers


def one_after_the_other(_):
    for size in (4, 8, 2):
        of(size)


def views_keep_what_they_look_at(_):
    whole = of(8)
    view = whole[2:].view(-1, 2).T
    del whole
    other = of(4)
    del other
    return view


def in_place_and_out_make_nothing(outside):
    scratch = of(4)
    outside.mul_(2).add_(1)
    torch.exp(outside[: scratch.numel()], out=scratch)
    outside.view(2, -1).copy_(outside.view(2, -1))


def a_resized_out_grows(_):
    scratch = torch.empty(0)
    torch.add(of(4), 1, out=scratch)
    return scratch


def saved_for_backward(_):
    leaf = of(4).requires_grad_()
    out = leaf.exp()  # kept alive by the graph alone
    out = out.sum()
    assert out.grad_fn is not None
    of(2)
    return leaf, out


def a_tensor_from_numbers(_):
    return torch.tensor([1.0] * KB), torch.tensor([2] * KB)


def half_precision(_):
    return of(4).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("steps", "live", "peak", "largest", "made"),
    [
        (one_after_the_other, 0, 8, 8, 14),
        (views_keep_what_they_look_at, 8, 12, 8, 12),
        (in_place_and_out_make_nothing, 0, 4, 4, 4),
        (a_resized_out_grows, 4, 8, 4, 8),
        (saved_for_backward, 8, 10, 4, 10),
        (a_tensor_from_numbers, 12, 12, 8, 12),
        (half_precision, 2, 6, 4, 6),
    ],
)
def test_known_allocations_give_the_known_numbers(steps, live, peak, largest, made):
    assert counted(steps) == (live, peak, largest, made)


def test_a_backward_pass_is_seen():
    leaf = of(16).requires_grad_()
    with Allocations() as seen:
        leaf.square().sum().backward()
    # the square, then the gradient in its place or beside it
    assert 16 * KB <= seen.live <= seen.peak
    assert leaf.grad.untyped_storage().nbytes() == seen.live
