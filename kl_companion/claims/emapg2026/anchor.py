"""Sections 1, 3 and 6: the anchor as an average of policies, and its memory (emapg2026)."""

from __future__ import annotations

import torch

from kl_companion.claims.emapg2026.anchored import Rates, ema_cycle, ema_step, normal
from kl_companion.claims.ledger import Evidence, claim, violation
from kl_companion.claims.worlds import apart, less, worst


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


@claim("EMA-eq2", how="simulation")
def anchor_as_a_weighted_average() -> Evidence:
    """Unrolled: weights (1 - eta) eta^j on the policies before the last, eta^t on the first."""
    return Evidence(
        _averaged(new=False),
        condition=(
            "the policy that a step has just produced is not in the anchor yet; in section 1 and in "
            "Algorithm 3 it is (EMA-intro-ema)"
        ),
    )


@claim("EMA-intro-ema", how="simulation")
def the_anchor_of_the_introduction() -> Evidence:
    """The same average with the new policy counted; a mode's lag falls by eta (1 - a), not by eta - a."""
    errors = [_averaged(new=True)]
    one, eta = torch.ones(1, dtype=torch.float64), 0.9
    for a in (0.0, 0.3, 0.9, 1.5):
        theta, anchor = ema_cycle(one, 0 * one, 0 * one, lambda t, x: t - x, Rates(eta, 1.0, a), 1)
        errors.append(apart(theta - anchor, eta * (1 - a)))
    return Evidence(
        worst(errors),
        condition=(
            "the new policy is counted, unlike in eq (2): with a = alpha beta lambda one step multiplies the "
            "lag by eta (1 - a), where eq (8) has eta - a"
        ),
    )


@claim("EMA-eq2+target", how="reading")
def target_networks() -> Evidence:
    """A statement about the literature."""
    return Evidence(
        needs="a survey of the literature",
        correction="a target that is copied every T steps is Algorithm 3 with eta = 0 and T_ema = T",
    )


def _stored(**tensors: torch.Tensor) -> int:
    """Numbers held, each storage counted once."""
    return sum({x.data_ptr(): x.numel() for x in tensors.values()}.values())


def _stuck(eta: float, weight: float = 0.02, drift: float = 1e-6) -> float:
    """How far a weight has drifted when its anchor in bfloat16 first moves."""
    anchor = torch.tensor(weight).bfloat16()
    start = theta = anchor.double()
    while torch.equal((eta * anchor.double() + (1 - eta) * theta).bfloat16(), anchor):
        theta = theta + drift
    return float(theta - start)


@claim("EMA-noextra", how="simulation")
def two_sets_of_weights() -> Evidence:
    """Policy and anchor, moved in place: as many numbers as policy and fixed reference."""
    policy, base = normal(50, seed=7), normal(50, seed=8)
    fixed = {"policy": policy, "reference": policy.clone()}
    averaged = {"policy": policy, "anchor": policy.clone()}
    before = _stored(**averaged)
    for _ in range(3):
        policy += 0.1
        averaged["anchor"].lerp_(policy, 0.1)
    moved = less(0.0, apart(averaged["anchor"], fixed["reference"]))
    adapters = {"base": base, "adapter": normal(4, seed=9)}
    more = _stored(**adapters, anchor=adapters["adapter"].clone()) - _stored(**adapters)
    return Evidence(
        max(moved, abs(_stored(**fixed) - _stored(**averaged)), abs(before - _stored(**averaged))),
        condition=(
            "compared with a stored reference. With adapters the fixed reference is the base model and costs "
            f"nothing, and the anchor is one more adapter ({more} numbers beside {_stored(**adapters)} in a "
            "toy). And the anchor wants the precision of the policy: a weight of 0.02 kept in bfloat16 with "
            f"eta = 0.9 first moves when the policy is {_stuck(0.9):.1e} away"
        ),
    )
