"""Which number of a loss is its KL coefficient, and what a trainer does to rewards before."""

from dataclasses import dataclass

import torch

from kl_companion import KLTerm, Recipe
from kl_companion.auditing.updates.step import as_step, with_advantages
from kl_companion.auditing.updates.worlds import prompt
from kl_companion.tabular.populations import population_rollout

BATCH = population_rollout(prompt(0.5))


def test_a_recipe_has_its_own():
    recipe = Recipe(kl=KLTerm("k1", "reward"), beta=0.3, name="mine")
    step = as_step(recipe)
    assert (step.name, step.beta, step.coefficient, step.recipe) == ("mine", 0.3, "beta", recipe)
    assert step.with_beta(0.3).loss(BATCH) == step.loss(BATCH) != step.with_beta(3.0).loss(BATCH)
    without = as_step(Recipe())
    assert (without.beta, without.coefficient, without.with_beta) == (None, "", None)


def test_a_default_a_number_that_is_assumed_and_one_that_is_set():
    def loss(logp, ref_logp, rewards, kl_coef=0.25, clip=0.2):
        return ((kl_coef * (logp - ref_logp) - rewards[:, None]) * logp).sum()

    def bare(logp, ref_logp, rewards, kl_coef):
        return loss(logp, ref_logp, rewards, kl_coef)

    assert [as_step(loss).beta, as_step(loss).coefficient] == [0.25, "kl_coef"]
    assert as_step(bare).beta == 1.0
    assert as_step(loss, options={"kl_coef": 0.5}).beta == 0.5
    more = as_step(loss).with_beta(0.5)
    assert (
        more.loss(BATCH) == as_step(loss, options={"kl_coef": 0.5}).loss(BATCH) != as_step(loss).loss(BATCH)
    )


@dataclass
class Config:
    kl_loss_coef: float = 0.1
    clip_ratio: float = 0.2


class Trainer:
    def __init__(self, config: Config):
        self.config = config

    def loss(self, logp, ref_logp, rewards):
        return ((self.config.kl_loss_coef * (logp - ref_logp) - rewards[:, None]) * logp).sum()


def test_a_field_of_a_configuration():
    step = as_step(Trainer.loss)
    assert (step.beta, step.coefficient) == (0.1, "config.kl_loss_coef")
    for name in ("config.kl_loss_coef", "kl_loss_coef"):
        set_to = as_step(Trainer.loss, options={name: 0.5})
        assert set_to.beta == 0.5
        assert set_to.loss(BATCH) == step.with_beta(0.5).loss(BATCH) != step.loss(BATCH)
    assert step.with_beta(1.0).loss(BATCH) != step.loss(BATCH)


def test_two_that_could_be_it_are_none():
    def loss(logp, ref_logp, rewards, beta=0.1, kl_coef=0.2):
        return ((beta * kl_coef * (logp - ref_logp) - rewards[:, None]) * logp).sum()

    assert as_step(loss)[2:5] == (None, "", None)


def test_advantages_are_made_of_the_rewards_of_a_group():
    seen = []

    def loss(logp, advantages, beta=0.1):
        seen.append(advantages)
        return -(advantages[:, None] * logp).sum() * beta

    step = with_advantages(as_step(loss), "group_std")
    step.loss(BATCH)
    rewards = BATCH.rewards
    assert torch.allclose(seen[-1], (rewards - rewards.mean()) / (rewards.std() + 1e-4))
    assert torch.allclose(step.with_beta(0.2).loss(BATCH), 2 * step.loss(BATCH), atol=1e-12)
