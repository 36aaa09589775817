"""The whole default recipes of frameworks: an RL algorithm with one of the framework's KL settings."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.records import Setting
from kl_companion.frameworks.registry import settings
from kl_companion.rollout import Rollout, masked


class FrameworkRecipe(NamedTuple):
    """An algorithm of a framework with one of its KL settings.

    Attributes:
        setting: The KL term.
        algorithm: Advantages and policy loss.
    """

    setting: Setting
    algorithm: Algorithm

    @property
    def option(self) -> str:
        """What a user writes: the choice of the algorithm, if it is not the default, and that of the KL."""
        return "; ".join(x for x in (self.algorithm.when, self.setting.option) if x)

    @property
    def where(self) -> str:
        """Where advantages are made: ``file:line, function``, or file and function of a formula."""
        return self.setting.framework.located(self.algorithm.place)

    def advantages(self, rollout: Rollout, beta: float, charged: torch.Tensor | None = None) -> torch.Tensor:
        """Of every token, [batch, seq], detached, with a penalty in the reward where it belongs.

        Args:
            rollout: The answers to one prompt, with rewards.
            beta: The coefficient.
            charged: What `charged_with` finds, if it is known.

        Raises:
            ValueError: the rollout has no rewards.
        """
        recipe = self.algorithm.recipe
        if self.setting.placement == "loss" or beta == 0:
            return recipe.advantages(rollout)
        cost = beta * (charged_with(self.setting, rollout) if charged is None else charged)
        if self.algorithm.after:
            return masked(recipe.advantages(rollout) - cost, rollout.completion_mask)
        if recipe.of_tokens:  # every token has a return of its own; there is no critic
            return replace(recipe, critic=lambda _: cost).advantages(rollout)
        assert rollout.rewards is not None
        return recipe.advantages(replace(rollout, rewards=rollout.rewards - cost[:, 0]))

    def loss(self, rollout: Rollout, beta: float, charged: torch.Tensor | None = None) -> torch.Tensor:
        """The whole loss, a scalar; arguments and errors as `advantages`."""
        total = self.algorithm.policy_loss(rollout, self.advantages(rollout, beta, charged))
        added = self.setting.placement == "loss" and beta != 0
        return total + beta * self.setting.exact(rollout) if added else total


def charged_with(setting: Setting, rollout: Rollout) -> torch.Tensor:
    """What a setting in the reward charges every token with, [batch, seq]: its factor of the score.

    The loss is read on the policy's own samples.
    """
    logp = rollout.logp.detach().requires_grad_()
    alone = Rollout(rollout.tokens, rollout.completion_mask, logp, rollout.ref_logp)
    (cost,) = torch.autograd.grad(setting.exact(alone), logp)
    return cost * len(cost)


def default_recipes(framework_name: str | None = None) -> tuple[FrameworkRecipe, ...]:
    """Every default KL setting of RL with every algorithm that it is used with; ValueError for a bad name."""
    return tuple(
        FrameworkRecipe(s, a) for s in settings(framework_name) if s.beta is not None for a in s.algorithms
    )
