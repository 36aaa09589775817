"""Terms of single tokens: KLs to the old policy, clamps and what is dropped."""

import math

import pytest
import torch

from kl_companion import expected_gradient, prefix_tree
from kl_companion.frameworks import setting, terms
from kl_companion.frameworks.recipes import charged_with
from kl_companion.frameworks.terms import rpg_in_loss
from tests.support.data import data
from tests.support.frameworks.by_hand import rollout
from tests.support.frameworks.one_token import batch, one_token

DATA = data(__file__)


def world(off_policy=True, scale=1.0):
    return prefix_tree(3, 2, seed=4, eos=True, off_policy=off_policy, scale=scale)


def to_the_sampler(problem, reverse, forward):
    """Gradient of both KLs of every next token between policy and sampler, [rows, vocab], by visits."""
    theta = problem.logits.clone().requires_grad_()
    r = problem.rollout(theta)
    visits = (r.sampled_from * r.completion_mask).cumsum(-1) - r.sampled_from  # before each token
    seen, total = set(), 0.0
    for i in range(len(r.tokens)):
        for t in range(int(r.completion_mask[i].sum())):
            prefix = tuple(r.tokens[i, :t].tolist())
            if prefix in seen:
                continue
            seen.add(prefix)
            p, q = r.logp_all[i, t], r.behavior_logp_all[i, t]
            here = reverse * (p.exp() * (p - q)).sum() + forward * (q.exp() * (q - p)).sum()
            total = total + visits[i, t].exp() * here
    return torch.autograd.grad(total, theta)[0]


@pytest.mark.parametrize(
    ("kind", "reverse", "forward"),
    DATA["with_the_old_policy_as_the_reference_rpg_descends_kls_to_the_old_policy"],
)
def test_with_the_old_policy_as_the_reference_rpg_descends_kls_to_the_old_policy(kind, reverse, forward):
    problem = world()

    def terms(r):
        return rpg_in_loss(r, kind=kind, to="sampler")

    found = expected_gradient(lambda r: (terms(r) * r.completion_mask).sum(-1).mean(), problem)
    assert (found - to_the_sampler(problem, reverse, forward)).norm() < 1e-12 * (1 + found.norm())


@pytest.mark.parametrize("kind", ["rkl", "ufkl", "urkl", "js", "ujs"])
def test_rpg_clamps_at_ten_where_the_policy_is_far_above_the_reference(kind):
    near, far = one_token((0.5, 0.5), (0.25, 0.75)), one_token((0.5, 0.5), (0.002, 0.998))
    assert rpg_in_loss(far, kind="fkl").item() == pytest.approx(-math.log(250))
    assert rpg_in_loss(far, kind=kind).item() == 10
    assert 0 < rpg_in_loss(near, kind=kind).item() < 10


def test_rpgs_shipped_penalties_in_the_reward_are_constants():
    r = batch(off_policy=False, scale=1.0)
    ahead = r.completion_mask.flip(-1).cumsum(-1).flip(-1) * r.completion_mask
    for kind, each in {"fkl": -1, "rkl": 1, "ufkl": 0, "urkl": 0}.items():
        charged = charged_with(setting(f"rpg.reward_{kind}_old"), r)
        assert torch.allclose(charged, each * ahead, atol=1e-12)


def test_rllm_clips_what_it_has_summed():
    """k1 of the sampler: log 25 = 3.219 and log 0.3125 = -1.163, whose sum is within three."""
    r = rollout(reference=(0.016, 0.8))
    first, second = math.log(25), math.log(0.3125)
    clipped = setting("rllm.distill_clipped").loss(r).item()
    assert clipped == pytest.approx(5 / 4 * 3 + 4 / 5 * second, abs=1e-12)
    ahead = setting("rllm.distill_discount_1_clipped").loss(r).item()
    assert ahead == pytest.approx(5 / 4 * (first + second) + 4 / 5 * second, abs=1e-12)


def test_prime_rl_drops_tokens_that_have_fallen():
    kept = terms.fallen_dropped(rollout(sampler=(0.4, 0.39)), kl_tau=0.0)
    fallen = terms.fallen_dropped(rollout(sampler=(0.4, 0.41)), kl_tau=0.0)
    assert kept[0, 1] != 0
    assert fallen[0, 1] == 0
    assert fallen[0, 0] == kept[0, 0] != 0
