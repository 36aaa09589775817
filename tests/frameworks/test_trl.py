"""TRL's releases: defaults of the newest, and three older layouts, planted."""

import pytest
import torch

from kl_companion import kl_loss, prefix_tree
from kl_companion.frameworks.history.subjects import project
from kl_companion.frameworks.installed import Distribution, Unavailable, find, known
from kl_companion.frameworks.trl import grpo

NEWEST = find(*known("trl"))
SUBJECTS = {s.name: s for s in project("trl").subjects}
CONFIG = (
    "class GRPOConfig:\n    beta: float = field(default=0.04)\n    loss_type: str = field(default='bnpo')\n"
)
TERM = """
        x = inputs["ref_per_token_logps"] - logps
        kl = x.exp() - x - 1
        mask = inputs["completion_mask"]
        self._metrics["train"]["kl"].append(self.accelerator.gather(kl.mean()))
        return self.beta * (kl * mask).sum() / mask.sum()
"""
LAYOUTS = {
    "log-probs alone, compute_loss": """
class GRPOTrainer:
    def _get_per_token_logps(self, model, ids):
        pass

    def compute_loss(self, model, inputs, return_outputs=False):
        logps = self._get_per_token_logps(model, inputs["completion_ids"])
""",
    "a dictionary": """
class GRPOTrainer:
    def _get_per_token_logps_and_entropies(self, model, ids):
        pass

    def _compute_loss(self, model, inputs):
        found = self._get_per_token_logps_and_entropies(model, inputs["completion_ids"])
        logps = found["logps"] + 0 * found["entropies"]
""",
    "a pair": """
class GRPOTrainer:
    def _get_per_token_logps_and_entropies(self, model, ids):
        pass

    def _compute_loss(self, model, inputs):
        logps, entropies = self._get_per_token_logps_and_entropies(model, inputs["completion_ids"])
""",
}


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_older_layout_is_called_as_it_is(tmp_path, layout):
    folder = tmp_path / "trl/trainer"
    folder.mkdir(parents=True)
    (folder / "grpo_config.py").write_text(CONFIG)
    (folder / "grpo_trainer.py").write_text(LAYOUTS[layout] + TERM)
    shipped = grpo(Distribution("trl", "0.1", tmp_path), {})
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
    folder = tmp_path / "trl/trainer"
    folder.mkdir(parents=True)
    (folder / "rloo_config.py").write_text("class RLOOConfig:\n    kl_coef: float = 0.05\n")
    (folder / "rloo_trainer.py").write_text("class RLOOTrainer:\n    def train(self):\n        pass\n")
    older = Distribution("trl", "0.1", tmp_path)
    with pytest.raises(Unavailable, match=r"trl 0\.1 has an RLOOTrainer that makes its own rollouts"):
        SUBJECTS["trl.rloo"].ship(older, {})
    with pytest.raises(Unavailable, match=r"trl 0\.1 has no gkd_trainer\.py"):
        SUBJECTS["trl.gkd"].ship(older, {})
