"""Estimates with clamps, weights and zeros in the place of what is no number."""

import math
from dataclasses import replace

import pytest
import torch

from kl_companion.frameworks import setting
from kl_companion.frameworks.formulas import estimate
from tests.support.frameworks.by_hand import rollout


def test_miles_clamps_a_log_ratio_that_slime_does_not():
    """pi is 1e-12, the reference 0.9, the sampler 0.5: k3 times pi/mu is 2 x 0.9, or 2e-12 exp(20)."""
    r = rollout(policy=(1e-12, 0.2), reference=(0.9, 0.8), sampler=(0.5, 0.25))
    assert estimate(r, kind="k3", output_clamp=10.0, weight="ratio")[0, 0].item() == pytest.approx(
        1.8, abs=1e-9
    )
    found = estimate(r, kind="k3", input_clamp=20.0, output_clamp=10.0, weight="ratio")[0, 0].item()
    assert found == pytest.approx(2e-12 * math.exp(20), rel=1e-6)


def test_miles_leaves_out_a_token_whose_k3_overflows():
    """exp(800) is no number: slime's loss is infinite, miles has a zero in its place, without a gradient."""
    r = rollout()
    far = replace(r, logp=torch.tensor([[-800.0, math.log(0.2)]], dtype=torch.float64, requires_grad=True))
    found = estimate(far, kind="k3", finite=True)
    assert estimate(far, kind="k3")[0, 0] == math.inf
    assert found[0].tolist() == pytest.approx([0.0, 3 - math.log(4)], abs=1e-12)
    assert setting("miles.loss_k3").loss(far).item() == pytest.approx((3 - math.log(4)) / 2, abs=1e-12)


def test_oat_clamps_the_log_ratio_at_forty():
    r = rollout(policy=(1e-20, 0.2), reference=(0.9, 0.8))
    found = estimate(r, kind="k3", input_clamp=40.0)
    assert found[0, 0].item() == pytest.approx(math.expm1(40) - 40, rel=1e-12)
    (slope,) = torch.autograd.grad(found[0, 0], r.logits)
    assert slope.abs().max() == 0
