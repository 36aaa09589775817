"""What surrounds a framework's KL term: aggregation and placement, where they are not installed.

Policy gradients are REINFORCE with the ratio of policy to sampler attached to every token, which is what a
PPO loss is inside its clip range; on-policy the ratio is 1. A baseline has mean zero and is left out.
"""

from __future__ import annotations

import torch

from kl_companion.rollout import Rollout, aggregate, credit, masked


def token_sum(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Sum over the tokens of the batch, divided by a constant number of them (see `settings`)."""
    return aggregate(x, rollout.completion_mask)


def sequence_mean(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Mean over sequences of the mean over tokens."""
    return aggregate(x, rollout.completion_mask, "sequence_mean")


def ratio(rollout: Rollout) -> torch.Tensor:
    """pi / mu of every token with its gradient, [batch, seq]; 1 on-policy and outside the mask."""
    return masked(rollout.logp - rollout.sampled_from, rollout.completion_mask).exp()


def score_ratio(rollout: Rollout) -> torch.Tensor:
    """pi / sg(pi) of every token, [batch, seq]: 1, with the score as its gradient."""
    return (rollout.logp - rollout.logp.detach()).exp()


def charged(penalty: torch.Tensor, rollout: Rollout, *, ahead: bool) -> torch.Tensor:
    """The loss that charges every token with a detached penalty; a scalar.

    Args:
        penalty: [batch, seq]; detached here.
        rollout: The samples.
        ahead: Charge a token with the penalties of all that follows (return-to-go), or with its own only.
    """
    cost = credit(penalty.detach(), rollout.completion_mask, discount=1.0 if ahead else 0.0)
    return token_sum(cost * ratio(rollout), rollout)
