"""AReaL, SkyRL, torchtune and Unsloth: defaults in the installed files, clips and denominators by hand."""

import ast
import math
import re

import pytest
import torch
import yaml

from kl_companion.auditing.exact import exactly
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


# -- what is called a default is one ------------------------------------------------------------------------


def fields(name, file, of):
    """{field: default} of a dataclass in an installed file; of ``field(default=...)`` the default."""
    tree = ast.parse((find(*known(name)).root / file).read_text())
    (body,) = [n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == of]
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            value = node.value
            if isinstance(value, ast.Call):
                value = next((k.value for k in value.keywords if k.arg == "default"), None)
            if isinstance(value, ast.Constant):
                found[node.target.id] = value.value
    return found


def test_defaults_of_areal():
    actor = fields("areal", "areal/api/cli_args.py", "PPOActorConfig")
    wanted = {"kl_ctl": 0.1, "kl_estimator": "k1", "adv_norm": None, "discount": 1.0, "gae_lambda": 1.0}
    wanted |= {"eps_clip": 0.2, "eps_clip_higher": None, "c_clip": None, "reward_clip": 20.0}
    wanted |= {"use_decoupled_loss": False, "recompute_logprob": False}
    assert {name: actor[name] for name in wanted} == wanted
    norm = fields("areal", "areal/api/cli_args.py", "NormConfig")
    wanted = {"mean_level": "batch", "mean_leave1out": False, "std_level": "batch", "std_unbiased": True}
    assert {name: norm[name] for name in (*wanted, "eps")} == wanted | {"eps": 1e-5}
    text = (find(*known("areal")).root / areal._ACTOR).read_text()
    assert 'input_data.get("rl_loss_weight", 1.0)' in text


def test_defaults_of_skyrl():
    found = fields("skyrl", "skyrl/train/config/config.py", "AlgorithmConfig")
    wanted = {"advantage_estimator": "grpo", "kl_estimator_type": "k3", "use_kl_loss": True}
    wanted |= {"use_kl_in_reward": False, "kl_loss_coef": 0.001, "loss_reduction": "token_mean"}
    wanted |= {"grpo_norm_by_std": True, "eps_clip_low": 0.2, "eps_clip_high": 0.2}
    assert {name: found[name] for name in wanted} == wanted
    text = (find(*known("skyrl")).root / "skyrl/backends/skyrl_train/workers/worker.py").read_text()
    assert "kl_loss = masked_mean(kl_loss, loss_mask, dim=-1).mean()" in text


def test_defaults_of_torchtune():
    root = find(*known("torchtune")).root
    config = yaml.safe_load((root / "recipes/configs/mistral/7B_full_ppo_low_memory.yaml").read_text())
    assert (config["kl_coeff"], config["gamma"], config["lmbda"]) == (0.01, 1, 0.95)
    assert config["loss"]["epsilon"] == 0.2


def test_the_installed_torchtune_has_a_grpo_recipe_and_not_its_loss():
    root = find(*known("torchtune")).root
    assert "from torchtune.dev.grpo." in (root / "recipes/dev/grpo_full_finetune_distributed.py").read_text()
    assert not (root / "torchtune/dev").exists()
    assert not setting("torchtune.grpo").installed
    assert setting("torchtune.grpo").version.startswith("commit ")
    assert setting("torchtune.grpo").digest == "none"
    assert setting("torchtune.ppo").version == known("torchtune")[1][0]


def test_defaults_of_unsloth():
    """Off by default; and who calls the function without the option has no ratio, unlike the trainer."""
    root = find(*known("unsloth")).root
    text = (root / "unsloth_zoo/mlx/grpo.py").read_text()
    assert re.search(r'config\.beta = 0\.0 if config\.loss_type in \("dapo", "dr_grpo"\) else 0\.001', text)
    assert "loss_type defaults to TRL's 'dapo' with beta=0.0, as on " in text
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
