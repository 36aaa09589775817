"""AReaL, SkyRL, torchtune and Unsloth: defaults in the installed files, clips and denominators by hand."""

import math

import pytest
import torch

from kl_companion.auditing.reading.precision import exactly
from kl_companion.frameworks import areal, setting, settings, skyrl, torchtune
from kl_companion.frameworks.installed import find, known
from kl_companion.frameworks.linking import link
from kl_companion.rollout import Rollout, credit


def framework_policy(name):
    (algorithm,) = settings(name)[0].algorithms
    return lambda rollout, advantages: algorithm.policy(rollout, advantages=advantages)


def two_answers():
    """Ratios to the sampler of 1.25 and 0.5, and of 2; the second answer has one token."""
    old = torch.tensor([[0.4, 0.5], [0.25, 0.5]], dtype=torch.float64)
    new = torch.tensor([[0.5, 0.25], [0.5, 0.5]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    tokens = torch.zeros(2, 2, dtype=torch.long)
    return Rollout(tokens, mask, new.log().requires_grad_(), old.log() - 12.0, behavior_logp=old.log())


WEIGHTS = torch.tensor([[1.0, -1.0], [3.0, 5.0]], dtype=torch.float64)
CLIPPED = -1.2 + 0.8 - 3 * 1.2  # advantages 1, -1 and 3, with ratios clipped to 0.8 ... 1.2 in PPO's way


@pytest.mark.parametrize(
    ("policy", "count"),
    [(areal.grpo, 2), (skyrl.policy, 3), (torchtune.policy, 2), (framework_policy("unsloth"), 2)],
    ids=["areal", "skyrl", "torchtune", "unsloth"],
)
def test_a_policy_loss_is_clipped_and_divided(policy, count):
    """By a constant number of tokens, the number of answers; SkyRL's by the tokens, beside its term."""
    assert policy(two_answers(), WEIGHTS).item() == pytest.approx(CLIPPED / count, rel=1e-6)


def test_what_areal_charges_is_at_most_ten():
    """All log-ratios of the sampler are 12."""
    for kind, most in (("k1", 10.0), ("k2", 10.0), ("k3", 10.0)):
        cost = exactly_penalty(areal.penalty, kind=kind)
        assert cost.tolist() == [[most, most], [most, 0.0]]


def exactly_penalty(penalty, **options):
    with torch.no_grad():
        return penalty(two_answers(), **options)


@pytest.mark.parametrize(("kind", "cost"), [("k1", 12.0), ("abs", 12.0), ("k2", 72.0), ("k3", 10.0)], ids=str)
def test_what_skyrl_charges_is_clamped_in_k3_alone(kind, cost):
    found = exactly_penalty(skyrl.penalty, kind=kind)
    torch.testing.assert_close(found, cost * two_answers().completion_mask)


def test_torchtune_charges_k1_outside_the_answer_too():
    """Its recipe fills both log-probs with one number there."""
    torch.testing.assert_close(exactly_penalty(torchtune.penalty), torch.full((2, 2), 12.0).double())


def test_what_follows_is_summed_as_torchtune_and_skyrl_sum_it():
    r = two_answers()
    rewards = -r.sampled_from * r.completion_mask
    nothing = torch.zeros_like(rewards)
    wanted = credit(rewards, r.completion_mask) * r.completion_mask
    _, returns = torchtune.functions().estimate_advantages(nothing, rewards, 1.0, 1.0)
    torch.testing.assert_close(returns * r.completion_mask, wanted)
    found = skyrl.functions().compute_gae_advantage_return(rewards, nothing, r.completion_mask, 1.0, 1.0)
    torch.testing.assert_close(found[1] * r.completion_mask, wanted)


@pytest.mark.parametrize(
    ("name", "weight"), [("areal.distillation_joint", 1.0), ("areal.distillation_alone", 0.0)]
)
def test_the_two_branches_of_areals_distillation(name, weight):
    r = two_answers()
    each = r.logp.detach() - r.ref_logp
    ratio = 1.0 if weight else (r.logp.detach() - r.sampled_from).exp()
    wanted = (each * ratio * r.completion_mask).sum() / 2
    assert exactly(setting(name).loss)(r).item() == pytest.approx(wanted.item(), rel=1e-12)
    (slope,) = torch.autograd.grad(exactly(setting(name).loss)(r), r.logp)
    scores = torch.ones_like(each) if weight else each * ratio
    torch.testing.assert_close(slope, scores * r.completion_mask / 2)


def test_the_installed_torchtune_has_a_grpo_recipe_and_not_its_loss():
    root = find(*known("torchtune")).root
    assert "from torchtune.dev.grpo." in (root / "recipes/dev/grpo_full_finetune_distributed.py").read_text()
    assert not (root / "torchtune/dev").exists()
    assert not setting("torchtune.grpo").installed
    assert setting("torchtune.grpo").version.startswith("commit ")
    assert setting("torchtune.grpo").digest == "none"
    assert setting("torchtune.ppo").version == known("torchtune")[1][0]


def test_unsloths_function_alone_has_no_ratio():
    """Who calls the function without the option has no ratio, unlike the trainer."""
    r = two_answers()
    r = Rollout(r.tokens, r.completion_mask, r.logp, r.logp.detach() - 1.0, behavior_logp=r.behavior_logp)
    own = {"loss_type": "dapo", "num_items_in_batch": 2}
    function = link(find(*known("unsloth")), "unsloth_zoo/rl_replacements.py", "grpo_compute_loss")
    arguments = (r.ref_logp, r.logp, r.sampled_from, None, r.tokens, r.completion_mask, 1.0, torch.zeros(2))
    found = [
        function(*arguments, **own, **more)[0].item()
        for more in ({}, {"use_bias_correction_kl": False}, {"use_bias_correction_kl": True})
    ]
    k3 = math.exp(-1) - 1 + 1
    assert found == pytest.approx([3 * k3 / 2, 3 * k3 / 2, (1.25 + 0.5 + 2) * k3 / 2], rel=1e-6)
