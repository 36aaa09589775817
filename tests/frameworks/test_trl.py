"""TRL's releases: defaults of the newest, and three older layouts, planted."""

import pytest
import torch

from kl_companion import kl_loss, prefix_tree
from kl_companion.frameworks.history.subjects import project
from kl_companion.frameworks.installed import Unavailable, find, known
from kl_companion.frameworks.trl import grpo
from tests.support.frameworks.planted import plant

NEWEST = find(*known("trl"))
SUBJECTS = {s.name: s for s in project("trl").subjects}


def batch(on_policy=False):
    problem = prefix_tree(3, 3, seed=0, eos=True, off_policy=not on_policy)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))


def slope(loss, rollout):
    value = loss(rollout)
    return value.item(), torch.autograd.grad(value, rollout.logits)[0]


def test_the_defaults_are_those_of_the_newest_release():
    shipped = SUBJECTS["trl.grpo"].ship(NEWEST, {})
    assert shipped.beta == 0.0
    assert "loss_type='dapo'" in shipped.option
    assert "use_bias_correction_kl=True" in shipped.option
    assert SUBJECTS["trl.rloo"].ship(NEWEST, {}).beta == 0.05


@pytest.mark.parametrize("layout", ["trl 0.1", "trl 0.2", "trl 0.3"])
def test_an_older_layout_is_called_as_it_is(tmp_path, layout):
    shipped = grpo(plant(tmp_path, layout), {})
    assert shipped.option == "GRPOConfig(beta=0.04, loss_type='bnpo')"
    value, gradient = slope(shipped.loss, batch(on_policy=True))
    wanted, known = slope(lambda r: kl_loss(r, estimator="k3", how="token_mean"), batch(on_policy=True))
    assert value == pytest.approx(wanted, abs=1e-12)
    assert (gradient - known).abs().max() < 1e-12


def test_what_a_release_has_not_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"option of GRPOConfig of TRL .* 'loss_typ'\. Did you mean 'loss_type'"
    ):
        SUBJECTS["trl.grpo"].ship(NEWEST, {"loss_typ": "grpo"})
    older = plant(
        tmp_path,
        "trl 0.1",
        **{
            "trl/trainer/rloo_config.py": "class RLOOConfig:\n    kl_coef: float = 0.05\n",
            "trl/trainer/rloo_trainer.py": "class RLOOTrainer:\n    def train(self):\n        pass\n",
        },
    )
    with pytest.raises(Unavailable, match=r"trl 0\.1 has an RLOOTrainer that makes its own rollouts"):
        SUBJECTS["trl.rloo"].ship(older, {})
    with pytest.raises(Unavailable, match=r"trl 0\.1 has no gkd_trainer\.py"):
        SUBJECTS["trl.gkd"].ship(older, {})
