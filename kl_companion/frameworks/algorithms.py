"""How a framework gets from rewards to a policy loss: what it compares, and what it divides.

The audit of a setting takes a KL term alone, with coefficient 1. Beside rewards the coefficient is an
exchange rate between the two, and dividing by a standard deviation changes it. A penalty in the reward is
usually divided together with the reward: then equal rewards make beta cancel. A term in the loss is added to
rewards that are divided alone: then beta is in units of the divided reward. What beta is worth in an
algorithm is computed in `kl_companion.frameworks.worth`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.policy_losses.ratio_losses import policy_loss
from kl_companion.rollout import Rollout, aggregate

PolicyLoss = Callable[..., torch.Tensor]
_OVER: dict[str, Literal["group", "batch"]] = {
    "group_std": "group",
    "others_std": "group",
    "batch_std": "batch",
    "whitened": "batch",
}


class Algorithm(NamedTuple):
    """An RL algorithm of a framework, without its KL.

    Attributes:
        name: As the framework's users call it, such as ``"GRPO"``.
        recipe: What becomes of rewards, and how tokens are aggregated; its ``normalize`` is the framework's
            own function where that is installed. Without a critic. A sum over tokens is divided by a constant
            number of them, as in `Setting`.
        place: The file and the function that make advantages.
        when: The option that chooses it; "" for the default.
        instead: What to set so that nothing is divided by a standard deviation; "" if no option does that, or
            if nothing is divided.
        after: Whether a penalty in the reward is subtracted after the rewards are normalized.
        policy: The framework's own policy loss, a function of a rollout and of advantages [batch, seq]; None
            for that of ``recipe``.
    """

    name: str
    recipe: Recipe
    place: SourceLocation
    when: str = ""
    instead: str = ""
    after: bool = False
    policy: PolicyLoss | None = None

    @property
    def over(self) -> Literal["", "group", "batch"]:
        """Whose standard deviation divides: of the answers to one prompt, of the whole batch; "" for none."""
        return _OVER.get(self.recipe.advantage, "")

    def policy_loss(self, rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
        """The policy loss of these advantages, [batch, seq]; a scalar."""
        if self.policy is not None:
            return self.policy(rollout, advantages=advantages)
        mask = rollout.completion_mask
        x = policy_loss(self.recipe.policy_loss, rollout.logp - rollout.sampled_from, advantages, mask)
        return aggregate(x, mask, self.recipe.aggregate)
