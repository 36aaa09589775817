"""What a whole sequence of a rollout adds up to: sums over its tokens, and rewards divided by beta."""

from __future__ import annotations

import torch

from kl_companion.checks import check_scalar
from kl_companion.rollout import Rollout, masked


def total(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """The sum of [batch, seq] over the tokens that count, [batch]."""
    return masked(x, rollout.completion_mask).sum(-1)


def scaled_rewards(rollout: Rollout, beta: float) -> torch.Tensor:
    """R / beta of every sequence, [batch], detached; rewards and beta are checked here."""
    check_scalar("beta", beta, positive=True)  # rewards are divided by it
    if rollout.rewards is None:
        raise ValueError("the rollout holds no rewards, expected one per sequence [batch]")
    rewards = rollout.rewards.detach().to(rollout.logp.dtype)
    if not rewards.isfinite().all():
        raise ValueError(f"rewards are {rewards.tolist()}, expected finite numbers")
    scaled = rewards / beta
    if not scaled.isfinite().all():
        where = int((~scaled.isfinite()).nonzero()[0])
        raise ValueError(
            f"the reward {rewards[where].item():g} of sequence {where} divided by beta={beta} is beyond "
            f"{scaled.dtype}, expected a larger beta or a wider dtype"
        )
    return scaled
