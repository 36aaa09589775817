"""Sections 1, 3 and 6: the anchor as an average of policies, and its memory (emapg2026)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.anchors import Rates, ema_cycle, ema_step, normal
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst

Anchor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _averaged(new: bool) -> float:
    """Error of the unrolled average, with the new policy counted or not, for several eta."""
    errors, steps = [], 12
    for eta in (0.0, 0.3, 0.9, 0.99):
        theta = anchor = normal(4, seed=3)
        by, path = Rates(eta, 0.5, 0.0), [theta]
        for gradient in normal(steps, 4, seed=4):
            if new:
                theta, anchor = ema_cycle(theta, anchor, gradient, lambda t, a: t - a, by, 1)
            else:
                theta, anchor = ema_step(theta, anchor, gradient, theta - anchor, by)
            path.append(theta)
        seen = torch.stack(path[1:] if new else path[:-1])
        weights = (1 - eta) * eta ** torch.arange(steps - 1, -1, -1, dtype=torch.float64)
        errors.append(apart(anchor, eta**steps * path[0] + weights @ seen))
        errors += [abs(float(weights.sum()) + eta**steps - 1), violation(float(-weights.min()))]
        spread = float(weights.square().sum())  # of independent noise in theta: smoother unless eta = 0
        errors.append(violation(spread - (1 - eta) / (1 + eta)))
    return worst(errors)


@claim("EMA-eq2")
def anchor_as_a_weighted_average() -> Iterator[Found]:
    """Unrolled: weights (1 - eta) eta^j on the policies before the last, eta^t on the first."""
    yield from each_form(_averaged(new=False))


@claim("EMA-intro-ema")
def the_anchor_of_the_introduction() -> Iterator[Found]:
    """The same average with the new policy counted; a mode's lag falls by eta (1 - a), not by eta - a."""
    errors = [_averaged(new=True)]
    one, eta = torch.ones(1, dtype=torch.float64), 0.9
    for a in (0.0, 0.3, 0.9, 1.5):
        theta, anchor = ema_cycle(one, 0 * one, 0 * one, lambda t, x: t - x, Rates(eta, 1.0, a), 1)
        errors.append(apart(theta - anchor, eta * (1 - a)))
    yield from each_form(worst(errors))


def _alive() -> int:
    """Bytes of all tensors in this process, each storage counted once."""
    found = (x.untyped_storage() for x in gc.get_objects() if type(x) is torch.Tensor)
    return sum({x.data_ptr(): x.nbytes() for x in found}.values())


def _kept(references: int, anchor: Anchor | None, size: int = 10_000) -> float:
    """Numbers that a run keeps from one iteration to the next, as multiples of one set of weights.

    A step on the squared distance from the last reference stands for the loss. ``anchor`` makes new weights
    of that reference from the policy's and its own; without it the reference stays as it is.
    """
    before = _alive()
    policy, kept = normal(size, seed=7).requires_grad_(), [normal(size, seed=i) for i in range(references)]
    for _ in range(3):
        (slope,) = torch.autograd.grad((policy - kept[-1]).square().sum(), policy)
        policy = (policy - 0.1 * slope).detach().requires_grad_()
        del slope
        if anchor:
            kept[-1] = anchor(policy.detach(), kept[-1])
    return (_alive() - before) / (policy.element_size() * size)


def _stuck(eta: float, weight: float = 0.02, drift: float = 1e-6) -> float:
    """How far a weight has drifted when its anchor in bfloat16 first moves."""
    anchor = torch.tensor(weight).bfloat16()
    start = theta = anchor.double()
    while torch.equal((eta * anchor.double() + (1 - eta) * theta).bfloat16(), anchor):
        theta = theta + drift
    return float(theta - start)


@claim("EMA-noextra")
def no_further_set_of_weights() -> Iterator[Found]:
    """What is kept between iterations: policy and anchor, as policy and fixed reference before."""
    moving: tuple[Anchor, ...] = (
        lambda policy, anchor: anchor.lerp_(policy, 0.1),
        lambda policy, anchor: 0.9 * anchor + 0.1 * policy,
    )
    gc.collect()  # what is garbage already must not be freed while tensors are counted
    fixed = _kept(1, None)
    errors = [abs(_kept(1, anchor) - fixed) for anchor in moving]
    errors += [abs(fixed - 2), less(fixed, _kept(2, moving[0]))]  # beside a fixed reference it is one more
    errors.append(apart(*(anchor(*normal(2, 9, seed=8)) for anchor in moving)))
    yield from each_form(worst(errors), stuck=_stuck(0.9))
