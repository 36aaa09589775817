"""Sections 1, 3 and 6: the anchor as an average of policies, and its memory (emapg2026)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, less, same
from kl_book.ledger.claims.ground.anchors import Rates, ema_cycle, ema_step, linear_pull, normal

Anchor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _averages(*, new: bool) -> Iterator[Found]:
    """The unrolled average, with the new policy counted or not, for several eta."""
    steps = 12
    for eta in (0.0, 0.3, 0.9, 0.99):
        theta = anchor = normal(4, seed=3)
        by, path = Rates(eta, 0.5, 0.0), [theta]
        for gradient in normal(steps, 4, seed=4):
            if new:
                theta, anchor = ema_cycle(theta, anchor, gradient, linear_pull, by, 1)
            else:
                theta, anchor = ema_step(theta, anchor, gradient, theta - anchor, by)
            path.append(theta)
        averaged = torch.stack(path[1:] if new else path[:-1])
        weights = (1 - eta) * eta ** torch.arange(steps - 1, -1, -1, dtype=torch.float64)
        yield same(anchor, eta**steps * path[0] + weights @ averaged)
        yield same(weights.sum() + eta**steps, 1.0)
        yield at_most(0.0, weights)
        # spread of independent noise in theta: smoother unless eta = 0
        yield at_most(weights.square().sum(), (1 - eta) / (1 + eta))


@claim("EMA-eq2")
def anchor_as_a_weighted_average() -> Iterator[Found]:
    """Unrolled: weights (1 - eta) eta^j on the policies before the last, eta^t on the first."""
    yield from _averages(new=False)


@claim("EMA-intro-ema")
def the_anchor_of_the_introduction() -> Iterator[Found]:
    """The same average with the new policy counted; a mode's lag falls by eta (1 - a), not by eta - a."""
    yield from _averages(new=True)
    for a in (0.0, 0.3, 0.9, 1.5):
        theta, anchor = ema_cycle(1.0, 0.0, 0.0, linear_pull, Rates(0.9, 1.0, a), 1)
        yield same(theta - anchor, 0.9 * (1 - a))


def _bytes_alive() -> int:
    """Bytes of all tensors in this process, each storage counted once."""
    storages = (x.untyped_storage() for x in gc.get_objects() if type(x) is torch.Tensor)
    return sum({x.data_ptr(): x.nbytes() for x in storages}.values())


def _sets_of_weights(references: int, anchor: Anchor | None, size: int = 10_000) -> float:
    """Numbers that a run keeps from one iteration to the next, as multiples of one set of weights.

    A step on the squared distance from the last reference stands for the loss. ``anchor`` makes new weights
    of that reference from the policy's and its own; without it the reference stays as it is.
    """
    before, policy = _bytes_alive(), normal(size, seed=7).requires_grad_()
    stored = [normal(size, seed=i) for i in range(references)]
    for _ in range(3):
        (slope,) = torch.autograd.grad((policy - stored[-1]).square().sum(), policy)
        policy = (policy - 0.1 * slope).detach().requires_grad_()
        del slope
        if anchor:
            stored[-1] = anchor(policy.detach(), stored[-1])
    return (_bytes_alive() - before) / (policy.element_size() * size)


@claim("EMA-noextra")
def no_further_set_of_weights() -> Iterator[Found]:
    """What is kept between iterations: policy and anchor, as policy and fixed reference before."""
    moving: tuple[Anchor, ...] = (
        lambda policy, anchor: anchor.lerp_(policy, 0.1),
        lambda policy, anchor: 0.9 * anchor + 0.1 * policy,
    )
    gc.collect()  # what is garbage already must not be freed while tensors are counted
    fixed = _sets_of_weights(1, None)
    yield same(fixed, 2)
    for anchor in moving:
        yield same(_sets_of_weights(1, anchor), fixed)
    yield less(fixed, _sets_of_weights(2, moving[0]))  # beside a fixed reference it is one more
    in_place, anew = (anchor(*normal(2, 9, seed=8)) for anchor in moving)
    yield same(in_place, anew)


@words("EMA-noextra")
def drift_until_the_anchor_moves() -> dict[str, Any]:
    """How far a weight of 0.02 has drifted when its anchor in bfloat16 first moves, eta = 0.9."""
    anchor = torch.tensor(0.02).bfloat16()
    start = theta = anchor.double()
    while torch.equal((0.9 * anchor.double() + (1 - 0.9) * theta).bfloat16(), anchor):
        theta = theta + 1e-6
    return {"drift": theta - start}
