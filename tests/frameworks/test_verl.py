"""verl's releases: defaults of the installed one, refusals, and older layouts."""

import math
import re

import pytest

from kl_companion.frameworks import settings, verl
from kl_companion.frameworks.history.found import found
from kl_companion.frameworks.installed import Distribution, Unavailable, find, known
from kl_companion.frameworks.yaml_defaults import yaml_defaults
from tests.support.frameworks.by_hand import rollout

LOG2 = math.log(2)
K3 = (0.5 - 1 + LOG2, 4 - 1 - 2 * LOG2)  # of the two tokens of the rollout by hand


@pytest.fixture(scope="module")
def installed():
    return find(*known("verl"))


def test_the_defaults_are_those_of_the_adapter(installed):
    loss, reward = verl.loss(installed, {}), verl.reward(installed, {})
    known = {s.name: s for s in settings("verl") if s.default}
    both_names = known["verl.loss_k3"].option, known["verl.reward_k1"].option
    in_loss, in_reward = (re.sub(r" \(or k\d\)", "", option) for option in both_names)
    assert loss.option == in_loss
    assert reward.option == in_reward.replace("kl_ctrl.kl_coef=0.001, ", "")
    assert (loss.beta, reward.beta) == (known["verl.loss_k3"].beta, known["verl.reward_k1"].beta) == (0, 0)
    distilled = verl.distillation(installed, {})
    assert known["verl.distillation_k3"].option in distilled.option
    assert distilled.beta is None


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        ("loss", {"kl_penalty": "k1"}, "unknown option of the actor of verl"),
        ("loss", {"kl_loss_type": "k4"}, "does not know kl_loss_type=k4"),
        ("loss", {"loss_agg_mode": "median"}, "Invalid loss_agg_mode: median"),
        ("reward", {"kl_penalty": "full"}, "does not know kl_penalty=full"),
        ("reward", {"beta": 1.0}, "unknown option of algorithm and actor"),
        ("distillation", {"loss_mode": "k1"}, "refuses loss_mode=k1 without"),
        ("distillation", {"loss_mode": "forward_kl_topk"}, "of sampled tokens"),
        ("distillation", {"topk": 3}, "unknown option of distillation_loss"),
    ],
)
def test_what_the_release_does_not_have_is_refused(installed, subject, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(verl, subject)(installed, options)


# -- older layouts, planted ---------------------------------------------------------------------------------

CORE = """
import torch
import verl.utils.torch_functional as verl_F

def kl_penalty(logprob, ref_logprob, kl_penalty):
    if kl_penalty == "kl":
        return logprob - ref_logprob
    if kl_penalty == "low_var_kl":
        return (ref_logprob - logprob).exp() - (ref_logprob - logprob) - 1
    raise NotImplementedError

def compute_policy_loss(old_log_prob, log_prob, advantages, eos_mask, cliprange):
    ratio = (log_prob - old_log_prob).exp()
    low = -advantages * ratio.clamp(1 - cliprange, 1 + cliprange)
    return verl_F.masked_mean(torch.max(-advantages * ratio, low), eos_mask), 0.0, 0.0
"""
MEAN = """
def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()
"""
TRAINER = """
from verl import DataProto
from verl.trainer.ppo import core_algos

def apply_kl_penalty(data: DataProto, kl_ctrl, kl_penalty="kl"):
    length = data.batch["responses"].size(1)
    mask = data.batch["attention_mask"][:, -length:]
    kl = core_algos.kl_penalty(data.batch["old_log_probs"], data.batch["ref_log_prob"], kl_penalty=kl_penalty)
    data.batch["token_level_rewards"] = data.batch["token_level_scores"] - kl_ctrl.value * kl * mask
    kl_ctrl.update(current_kl=0.0, n_steps=data.batch.batch_size[0])
    return data, {}
"""
SETTINGS = """
actor_rollout_ref:
  hybrid_engine: True
  actor:  # of FSDP
    clip_ratio: 0.2
algorithm:
  kl_penalty: kl  # how to estimate it
  kl_ctrl:
    type: fixed
    kl_coef: 0.001
"""
FIRST = {
    "verl/__init__.py": "",
    "verl/utils/torch_functional.py": MEAN,
    "verl/trainer/ppo/__init__.py": "",
    "verl/trainer/ppo/core_algos.py": CORE,
    "verl/trainer/ppo/ray_trainer.py": TRAINER,
    "verl/trainer/ppo/actor/dp_actor.py": "class DataParallelPPOActor:\n    pass\n",
    "verl/trainer/config/ppo_trainer.yaml": SETTINGS,
}
ACTOR = """
from verl.trainer.ppo import core_algos
from verl.utils.torch_functional import masked_mean
from flash_attn import nothing_that_is_here

class DataParallelPPOActor:
    def update_policy(self, data):
        if self.config.use_kl_loss:
            data = data.select("ref_log_prob")
        for data in data.split(1):
            log_prob = nothing_that_is_here(data)
            if self.config.use_kl_loss:
                kld = core_algos.kl_penalty(log_prob, data["ref_log_prob"], self.config.kl_loss_type)
                kl_loss = masked_mean(kld, response_mask)
                policy_loss = policy_loss + kl_loss * self.config.kl_loss_coef
                metrics["actor/kl_loss"] = kl_loss.detach().item()
"""
SECOND = {
    **FIRST,
    "verl/workers/actor/dp_actor.py": ACTOR,
    "verl/trainer/config/ppo_trainer.yaml": SETTINGS.replace(
        "    clip_ratio: 0.2\n",
        "    clip_ratio: 0.2\n    use_kl_loss: False # True for GRPO\n    kl_loss_coef: 0.001\n"
        "    kl_loss_type: low_var_kl\n",
    ),
}
SEVENTH = {
    **SECOND,
    "verl/trainer/ppo/core_algos.py": CORE
    + "\ndef agg_loss(loss_mat, loss_mask, loss_agg_mode, batch_num_tokens=None):\n"
    "    assert loss_agg_mode == 'token-mean'\n"
    "    return (loss_mat * loss_mask).sum() / (batch_num_tokens or loss_mask.sum())\n"
    "\ndef compute_policy_loss_vanilla(\n"
    "    old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config\n"
    "):\n"
    "    assert config.clip_ratio == 0.2 and config.clip_ratio_low is None\n"
    "    each = -advantages * (log_prob - old_log_prob).exp()\n"
    "    return agg_loss(each, response_mask, loss_agg_mode, **config.global_batch_info), {}\n",
    "verl/workers/actor/dp_actor.py": ACTOR.replace(
        "masked_mean(kld, response_mask)", "core_algos.agg_loss(kld, response_mask, loss_agg_mode)"
    ),
    "verl/trainer/config/actor/actor.yaml": "clip_ratio: 0.2\nuse_kl_loss: false\nkl_loss_coef: 0.001\n"
    "kl_loss_type: low_var_kl\nloss_agg_mode: token-mean\n",
    "verl/trainer/config/ppo_trainer.yaml": SETTINGS.replace(
        "algorithm:\n", "algorithm:\n  use_kl_in_reward: False\n"
    ),
}
EIGHTH = {
    **{name: text for name, text in SEVENTH.items() if "dp_actor" not in name},
    "verl/workers/utils/losses.py": """
from verl.trainer.ppo.core_algos import agg_loss, kl_penalty
from verl.utils.metric import Metric

def ppo_loss(config, model_output, data):
    if config.use_kl_loss:
        kld = kl_penalty(logprob=log_prob, ref_logprob=data["ref_log_prob"], kl_penalty=config.kl_loss_type)
        totals = {"batch_num_tokens": config.global_batch_info["batch_num_tokens"]}
        kl_loss = agg_loss(kld, response_mask, config.loss_agg_mode, **totals)
        policy_loss += kl_loss * config.kl_loss_coef
        metrics["kl_loss"] = Metric(value=kl_loss, aggregation=metric_aggregation)
""",
}


def plant(folder, files, version):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Distribution("verl", version, folder)


def test_the_first_release_charges_every_run_with_its_reward(tmp_path):
    planted = plant(tmp_path, FIRST, "0.1")
    shipped = verl.reward(planted, {})
    assert (shipped.beta, shipped.option) == (0.001, "algorithm: kl_penalty=kl")
    # rewards -log 1.6 and log 3.2, their returns log 2 and log 3.2; pi/mu is 1.25, clipped to 1.2, and 0.8
    assert shipped.loss(rollout()).item() == pytest.approx((-1.2 * LOG2 - 0.8 * math.log(3.2)) / 2, abs=1e-9)
    with pytest.raises(Unavailable, match=r"verl 0\.1 has no statements under use_kl_loss"):
        verl.loss(planted, {})
    with pytest.raises(Unavailable, match=r"verl 0\.1 has no verl/trainer/distillation/losses\.py$"):
        verl.distillation(planted, {})
    with pytest.raises(ValueError, match="does not know kl_penalty=k3"):
        verl.reward(planted, {"kl_penalty": "k3"})


def test_the_second_divides_by_the_tokens_that_it_holds(tmp_path):
    planted = plant(tmp_path, SECOND, "0.2")
    shipped = verl.loss(planted, {})
    assert shipped.loss(rollout()).item() == pytest.approx(sum(K3) / 2, abs=1e-9)
    assert shipped.option == (
        "actor_rollout_ref.actor: use_kl_loss=True, kl_loss_coef=0.001, kl_loss_type=low_var_kl"
    )
    assert shipped.beta == 0
    assert shipped.place[:2] == ("verl/workers/actor/dp_actor.py", "DataParallelPPOActor.update_policy")
    assert verl.loss(planted, {"kl_loss_type": "kl"}).loss(rollout()).item() == pytest.approx(-LOG2 / 2)
    with pytest.raises(ValueError, match=r"unknown option .* 'loss_agg_mode'"):
        verl.loss(planted, {"loss_agg_mode": "token-mean"})


def test_totals_are_handed_on_when_the_old_actor_is_gone(tmp_path):
    seventh = plant(tmp_path / "7", SEVENTH, "0.7")
    eighth = plant(tmp_path / "8", EIGHTH, "0.8")
    old, new = verl.loss(seventh, {}), verl.loss(eighth, {})
    assert old.loss(rollout()).item() == pytest.approx(sum(K3) / 2, abs=1e-9)
    assert new.loss(rollout()).item() == pytest.approx(sum(K3), abs=1e-9)  # over one sequence
    assert (old.place.file, new.place.file) == (
        "verl/workers/actor/dp_actor.py",
        "verl/workers/utils/losses.py",
    )
    assert verl.reward(seventh, {}).beta == 0
    assert "use_kl_in_reward=True" in verl.reward(seventh, {}).option
    charged = -1.25 * LOG2 - 0.8 * math.log(3.2)
    assert verl.reward(seventh, {}).loss(rollout()).item() == pytest.approx(charged / 2, abs=1e-9)


# -- the files of defaults, and the findings ----------------------------------------------------------------


def test_a_file_of_defaults_is_read(tmp_path):
    text = (
        'a:\n  - item\n  b: 1e-3 # words\n  c:\n    d: "x # y"\n    e: null\n  f: ${g.h}\ng: False\n#h: 2\n'
    )
    (tmp_path / "file.yaml").write_text(text.replace("x # y", "x"))
    read = yaml_defaults(Distribution("verl", "9", tmp_path), "file.yaml")
    assert read == {
        "a": None,
        "a.b": 0.001,
        "a.c": None,
        "a.c.d": "x",
        "a.c.e": None,
        "a.f": "${g.h}",
        "g": False,
    }
    with pytest.raises(Unavailable, match=r"verl 9 has no file other\.yaml"):
        yaml_defaults(Distribution("verl", "9", tmp_path), "other.yaml")


def test_what_was_found_says_when_the_reward_went_off_and_when_totals_came():
    entries = {(e.subject, e.version): e for e in found("verl")}
    assert [entries["verl.reward", v].beta for v in ("0.3.0.post1", "0.4.0")] == ["0.001", "0"]
    for subject, named in (("verl.loss", "token_forward_kl"), ("verl.reward", "sequence_reverse_kl")):
        old, new = (entries[subject, v].on_policy.split(";")[0] for v in ("0.7.1", "0.8.0"))
        assert (old, new) == (f"{named} (1 / mean answer length)", named)
    assert not any("/.audit/" in e.where for e in entries.values())
