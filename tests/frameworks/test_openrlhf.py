"""OpenRLHF's releases: defaults of the installed one, refusals, older layouts and wheels."""

import math
import zipfile

import pytest
import torch

from kl_companion.frameworks import openrlhf, settings
from kl_companion.frameworks.blocks import block, call
from kl_companion.frameworks.history.found import found
from kl_companion.frameworks.history.wheels import unpack
from kl_companion.frameworks.installed import Unavailable, find, known
from tests.support.data import data
from tests.support.frameworks.by_hand import rollout
from tests.support.frameworks.one_token import value_and_slope
from tests.support.frameworks.planted import files, plant

DATA = data(__file__)

LOG2 = math.log(2)


@pytest.fixture(scope="module")
def installed():
    return find(*known("openrlhf"))


def test_the_mode_of_aggregation_is_that_of_the_policy_loss_alone(installed):
    """The actor hands its mode to PolicyLoss, and none to the aggregation of the KL."""
    by_sequence = {"actor.loss_agg_mode": "seq-mean-token-mean"}
    for subject, changes in (("loss", False), ("reward", True)):
        ship = getattr(openrlhf, subject)
        ours, other = (value_and_slope(ship(installed, o).loss)[1] for o in ({}, by_sequence))
        assert (not torch.allclose(ours, other)) == changes


def test_the_defaults_are_those_of_the_adapter(installed):
    loss, reward = openrlhf.loss(installed, {}), openrlhf.reward(installed, {})
    known = {s.name: s for s in settings("openrlhf") if s.default}
    assert reward.option == known["openrlhf.reward_k1"].option + " --actor.loss_agg_mode token-mean"
    assert loss.option.replace("--algo.kl.init_coef 0.01 ", "").startswith(known["openrlhf.loss_k1"].option)
    assert (loss.beta, reward.beta) == (known["openrlhf.loss_k1"].beta, known["openrlhf.reward_k1"].beta)
    on = openrlhf.loss(installed, {"algo.kl.unbiased_gradient": True, "algo.kl.init_coef": 0.5})
    assert "--algo.kl.init_coef 0.5 --algo.kl.estimator k1 --algo.kl.unbiased_gradient --actor" in on.option


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    DATA["refused"],
)
def test_what_the_release_does_not_have_is_refused(installed, subject, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(openrlhf, subject)(installed, options)


# -- older layouts, planted ---------------------------------------------------------------------------------


def test_the_first_releases_have_a_penalty_in_the_reward_and_means_of_sequences(tmp_path):
    planted = plant(tmp_path, "openrlhf 0.3")
    shipped = openrlhf.reward(planted, {})
    assert (shipped.option, shipped.beta) == ("--init_kl_coef 0.01", 0.01)
    # returns log 2 and log 3.2 of rewards -log 1.6 and log 3.2, pi/mu 1.25 and 0.8, and no clip
    charged = -1.25 * LOG2 - 0.8 * math.log(3.2)
    assert shipped.loss(rollout()).item() == pytest.approx(charged / 2, abs=1e-9)
    with pytest.raises(Unavailable, match=r"openrlhf 0\.3 has no statements under use_kl_loss"):
        openrlhf.loss(planted, {})


def test_the_cross_entropy_with_a_teacher(tmp_path):
    planted = plant(tmp_path, "openrlhf 0.3")
    shipped = openrlhf.distillation(planted, {"kd_coef": 0.5})
    assert (shipped.option, shipped.sampled) == ("train_kd --kd_coef 0.5", False)
    # 1/4 log 2 + 3/4 log 2, and 4/5 log 5 + 1/5 log 5/4
    wanted = (LOG2 + 0.8 * math.log(5) + 0.2 * math.log(1.25)) / 2
    assert shipped.loss(rollout()).item() == pytest.approx(wanted, abs=1e-9)


def test_the_sixth_differentiates_the_mean_of_each_sequence(tmp_path):
    planted = plant(tmp_path, "openrlhf 0.6")
    shipped = openrlhf.loss(planted, {})
    assert (shipped.option, shipped.beta) == ("--use_kl_loss --init_kl_coef 0.01", 0)
    assert shipped.place[:2] == ("openrlhf/trainer/ppo_trainer.py", "PPOTrainer.training_step_actor")
    assert shipped.loss(rollout()).item() == pytest.approx(-LOG2 / 2, abs=1e-9)
    k3 = openrlhf.loss(planted, {"use_kl_estimator_k3": True})
    assert k3.option == "--use_kl_loss --init_kl_coef 0.01 --use_kl_estimator_k3"
    assert k3.loss(rollout()).item() == pytest.approx((0.5 - 1 + LOG2 + 4 - 1 - 2 * LOG2) / 2, abs=1e-9)
    rewarded = openrlhf.reward(planted, {"use_kl_estimator_k3": True})
    first, second = 0.625 - 1 + math.log(1.6), 3.2 - 1 - math.log(3.2)  # of the sampler
    wanted = (1.25 * (first + second) + 0.8 * second) / 2
    assert rewarded.loss(rollout()).item() == pytest.approx(wanted, abs=1e-9)


def test_the_condition_in_the_first_file_that_has_one_is_taken(tmp_path):
    method = files("openrlhf 0.6")["openrlhf/trainer/ppo_trainer.py"]
    moved = method.replace("PPOTrainer", "ActorPPOTrainer").replace("training_step_actor", "training_step")
    planted = plant(tmp_path, "openrlhf 0.6", **{"openrlhf/trainer/ray/ppo_actor.py": moved})
    assert openrlhf.loss(planted, {}).place.function == "ActorPPOTrainer.training_step"
    with pytest.raises(Unavailable, match="no statements under use_loss that call compute_approx_kl"):
        block(planted, ("openrlhf/trainer/ppo_trainer.py",), "use_loss", "compute_approx_kl")


def test_a_function_is_called_with_what_it_takes():
    assert call(lambda b, a: (a, b), a=1, b=2, c=3) == (1, 2)


def test_packages_one_folder_deeper_in_a_wheel_are_found(tmp_path):
    wheel = tmp_path / "openrlhf-0.6-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("openrlhf-0.6.data/purelib/openrlhf/models/utils.py", "x = 1\n")
        archive.writestr("openrlhf/here.py", "y = 1\n")
        archive.writestr("openrlhf-0.6.data/purelib/../../outside.py", "z = 1\n")
    unpack(wheel, tmp_path / "out")
    found_files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.py")}
    assert found_files == {"out/openrlhf/models/utils.py", "out/openrlhf/here.py"}


def test_what_was_found_says_what_the_default_in_the_loss_came_to():
    """In 0.6 k1 lengthens answers, after it does nothing; the reference is in neither."""
    verdicts = {
        e.version: (e.on_policy, e.off_policy) for e in found("openrlhf") if e.subject == "openrlhf.loss"
    }
    assert verdicts["0.6.4"] == ("expected_inverse_length", "sampled_mean_log_likelihood")
    assert verdicts["0.7.5"] == ("nothing", "behavior_log_likelihood (1 / mean answer length)")
    assert verdicts["0.11.2"] == ("nothing", "behavior_log_likelihood")
