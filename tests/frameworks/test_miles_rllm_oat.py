"""What is peculiar to miles, rLLM and oat: clamps, what is left out, and what no token's choice changes."""

import math
from dataclasses import replace

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.auditing.exact import exactly
from kl_companion.frameworks import miles, oat, setting, settings, slime
from tests.support.frameworks.by_hand import rollout


def _far(scale=6.0):
    """Log-ratios of which some are clamped."""
    problem = prefix_tree(3, 3, seed=2, eos=True, off_policy=True, scale=scale)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 3, 5, 9, 12]))


@pytest.mark.parametrize(
    ("formula", "other"),
    [
        ("miles.loss_k1_unbiased", "slime.loss_k1_unbiased"),
        ("miles.loss_k2", "verl.loss_k2_seq_mean_token_mean"),
        ("miles.loss_k3", "trl.grpo_uncorrected_grpo"),
        ("miles.loss_k3_unbiased", "trl.grpo_grpo"),
        ("miles.loss_low_var_kl", "verl.loss_k3_seq_mean_token_mean"),
        ("miles.loss_low_var_kl_unbiased", "slime.loss_low_var_kl_unbiased"),
        ("miles.loss_k1_per_token", "verl.loss_k1"),
        ("miles.reward_reinforce_plus_plus", "openrlhf.reward_k1"),
        ("miles.opd", "slime.opd"),
        ("rllm.kl_beta_verl", "verl.loss_k3"),
        ("rllm.distill", "tinker.distillation_kl_discount_0"),
        ("rllm.distill_discount_1", "openrlhf.reward_k1"),
        ("oat.loss", "liger.grpo"),
        ("oat.loss_grpo", "trl.grpo_uncorrected_grpo"),
        ("oat.reward", "openrlhf.reward_k1"),
    ],
)
def test_a_formula_beside_another_that_is_the_same(formula, other):
    one, two = _far(), _far()
    a, b = exactly(setting(formula).loss)(one), exactly(setting(other).loss)(two)
    (x,), (y,) = torch.autograd.grad(a, one.logits), torch.autograd.grad(b, two.logits)
    assert a.item() == pytest.approx(b.item(), rel=1e-9)
    assert (x - y).abs().max() < 1e-9


def test_miles_clamps_a_log_ratio_that_slime_does_not():
    """pi is 1e-12, the reference 0.9, the sampler 0.5: k3 times pi/mu is 2 x 0.9, or 2e-12 exp(20)."""
    r = rollout(policy=(1e-12, 0.2), reference=(0.9, 0.8), sampler=(0.5, 0.25))
    assert slime.terms("low_var_kl", True, r)[0, 0].item() == pytest.approx(1.8, abs=1e-9)
    found = miles.terms("low_var_kl", True, r)[0, 0].item()
    assert found == pytest.approx(2e-12 * math.exp(20), rel=1e-6)


def test_miles_leaves_out_a_token_whose_k3_overflows():
    """exp(800) is no number: slime's loss is infinite, miles has a zero in its place, without a gradient."""
    r = rollout()
    far = replace(r, logp=torch.tensor([[-800.0, math.log(0.2)]], dtype=torch.float64, requires_grad=True))
    found = miles.terms("k3", False, far)
    assert slime.terms("k3", False, far)[0, 0] == math.inf
    assert found[0].tolist() == pytest.approx([0.0, 3 - math.log(4)], abs=1e-12)
    assert setting("miles.loss_k3").loss(far).item() == pytest.approx((3 - math.log(4)) / 2, abs=1e-12)


def test_the_top_k_of_miles_is_the_same_whichever_token_was_sampled():
    """Of the two likeliest of (0.5, 0.3, 0.2) with a teacher of (0.1, 0.6, 0.3): 5/8 and 3/8 of two logs."""
    student, teacher = (
        torch.tensor(p, dtype=torch.float64).log().expand(3, 1, 3) for p in ((0.5, 0.3, 0.2), (0.1, 0.6, 0.3))
    )
    problem = rollout(off_policy=False).from_logits(
        torch.tensor([[0], [1], [2]]), torch.ones(3, 1, dtype=torch.float64), student, teacher
    )
    wanted = 5 / 8 * math.log(0.5 / 0.1) + 3 / 8 * math.log(0.3 / 0.6)
    assert miles.top_k(2, problem).flatten().tolist() == pytest.approx([wanted] * 3, abs=1e-12)


def test_the_top_k_of_miles_is_the_samplers():
    assert miles.top_k(2, rollout())[0, 0].item() == pytest.approx(
        0.4 * math.log(0.4 / 0.25) + 0.6 * math.log(0.6 / 0.75), abs=1e-12
    )
    assert miles.top_k(1, rollout())[0, 0].item() == pytest.approx(math.log(0.6 / 0.75), abs=1e-12)


def test_rllm_clips_what_it_has_summed():
    """k1 of the sampler: log 25 = 3.219 and log 0.3125 = -1.163, whose sum is within three."""
    r = rollout(reference=(0.016, 0.8))
    first, second = math.log(25), math.log(0.3125)
    clipped = setting("rllm.distill_clipped").loss(r).item()
    assert clipped == pytest.approx(5 / 4 * 3 + 4 / 5 * second, abs=1e-12)
    ahead = setting("rllm.distill_discount_1_clipped").loss(r).item()
    assert ahead == pytest.approx(5 / 4 * (first + second) + 4 / 5 * second, abs=1e-12)


def test_oat_clamps_the_log_ratio_at_forty():
    r = rollout(policy=(1e-20, 0.2), reference=(0.9, 0.8))
    found = oat.k3(r)
    assert found[0, 0].item() == pytest.approx(math.expm1(40) - 40, rel=1e-12)
    (slope,) = torch.autograd.grad(found[0, 0], r.logits)
    assert slope.abs().max() == 0


def test_what_is_a_default_of_miles_rllm_and_oat():
    defaults = {s.name: s.beta for name in ("miles", "rllm", "oat") for s in settings(name) if s.default}
    assert defaults == {
        "miles.loss_k1": 0.0,
        "miles.opd": 0.0,
        "rllm.kl_beta_verl": 0.0,
        "rllm.distill": None,
        "oat.loss": 0.1,
        "oat.loss_grpo": 0.1,
    }
