"""verl's releases: defaults of the installed one, refusals, and older layouts."""

import math
import re

import pytest

from kl_companion.frameworks import settings, verl, verl_distillation
from kl_companion.frameworks.history.found import found
from kl_companion.frameworks.installed import Distribution, Unavailable, find, known
from kl_companion.frameworks.yaml_defaults import yaml_defaults
from tests.support.data import data
from tests.support.frameworks.by_hand import rollout
from tests.support.frameworks.planted import plant

DATA = data(__file__)

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
    distilled = verl_distillation.distillation(installed, {})
    assert known["verl.distillation_k3"].option in distilled.option
    assert distilled.beta is None


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    DATA["refused"],
)
def test_what_the_release_does_not_have_is_refused(installed, subject, options, message):
    with pytest.raises(ValueError, match=message):
        {**vars(verl), **vars(verl_distillation)}[subject](installed, options)


# -- older layouts, planted ---------------------------------------------------------------------------------


def test_the_first_release_charges_every_run_with_its_reward(tmp_path):
    planted = plant(tmp_path, "verl 0.1")
    shipped = verl.reward(planted, {})
    assert (shipped.beta, shipped.option) == (0.001, "algorithm: kl_penalty=kl")
    # rewards -log 1.6 and log 3.2, their returns log 2 and log 3.2; pi/mu is 1.25, clipped to 1.2, and 0.8
    assert shipped.loss(rollout()).item() == pytest.approx((-1.2 * LOG2 - 0.8 * math.log(3.2)) / 2, abs=1e-9)
    with pytest.raises(Unavailable, match=r"verl 0\.1 has no statements under use_kl_loss"):
        verl.loss(planted, {})
    with pytest.raises(Unavailable, match=r"verl 0\.1 has no verl/trainer/distillation/losses\.py$"):
        verl_distillation.distillation(planted, {})
    with pytest.raises(ValueError, match="does not know kl_penalty=k3"):
        verl.reward(planted, {"kl_penalty": "k3"})


def test_the_second_divides_by_the_tokens_that_it_holds(tmp_path):
    planted = plant(tmp_path, "verl 0.2")
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
    seventh = plant(tmp_path / "7", "verl 0.7")
    eighth = plant(tmp_path / "8", "verl 0.8")
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
    assert read == DATA["read"]
    with pytest.raises(Unavailable, match=r"verl 9 has no file other\.yaml"):
        yaml_defaults(Distribution("verl", "9", tmp_path), "other.yaml")


def test_what_was_found_says_when_the_reward_went_off_and_when_totals_came():
    entries = {(e.subject, e.version): e for e in found("verl")}
    assert [entries["verl.reward", v].beta for v in ("0.3.0.post1", "0.4.0")] == ["0.001", "0"]
    for subject, named in (("verl.loss", "token_forward_kl"), ("verl.reward", "sequence_reverse_kl")):
        old, new = (entries[subject, v].on_policy.split(";")[0] for v in ("0.7.1", "0.8.0"))
        assert (old, new) == (f"{named} (1 / mean answer length)", named)
    assert not any("/.audit/" in e.where for e in entries.values())
