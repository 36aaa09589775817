"""verl's algorithms: its own advantages of groups and batches, and its clipped policy loss."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from kl_companion.frameworks.verl_functions import Configuration, functions, global_batch
from kl_companion.rollout import Rollout

__all__ = ["by_batch", "by_group", "by_others", "by_returns", "policy"]


def policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """`compute_policy_loss_vanilla`, token-mean."""
    config = Configuration(
        clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, global_batch_info=global_batch(rollout)
    )
    loss: torch.Tensor
    loss, _ = functions().compute_policy_loss_vanilla(
        rollout.sampled_from, rollout.logp, advantages, rollout.completion_mask, "token-mean", config
    )
    return loss


def by_batch(returns: torch.Tensor) -> torch.Tensor:
    """`compute_gae_advantage_return` without a critic, each row a batch of answers of one token."""

    def one(batch: torch.Tensor) -> torch.Tensor:
        ones = torch.ones_like(batch).unsqueeze(1)
        found: torch.Tensor
        found, _ = functions().compute_gae_advantage_return(
            batch.unsqueeze(1), torch.zeros_like(ones), ones, 1.0, 1.0
        )
        return found.squeeze(1)

    return torch.stack([one(batch) for batch in returns])


def by_returns(returns: torch.Tensor) -> torch.Tensor:
    """`compute_reinforce_plus_plus_outcome_advantage`, each row a batch of answers of one token."""

    def one(batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor
        found, _ = functions().compute_reinforce_plus_plus_outcome_advantage(
            batch.unsqueeze(1), torch.ones_like(batch).unsqueeze(1), SimpleNamespace(gamma=1.0)
        )
        return found.squeeze(1)

    return torch.stack([one(batch) for batch in returns])


def _of_answers(name: str, returns: torch.Tensor) -> torch.Tensor:
    prompt = torch.arange(len(returns)).repeat_interleave(returns.shape[1]).tolist()
    column = returns.reshape(-1, 1)
    found: torch.Tensor
    found, _ = getattr(functions(), name)(column, torch.ones_like(column), prompt)
    return found.view_as(returns)


def by_group(returns: torch.Tensor) -> torch.Tensor:
    """`compute_grpo_outcome_advantage`, each row the answers to one prompt, of one token."""
    return _of_answers("compute_grpo_outcome_advantage", returns)


def by_others(returns: torch.Tensor) -> torch.Tensor:
    """`compute_rloo_outcome_advantage`, each row the answers to one prompt, of one token."""
    return _of_answers("compute_rloo_outcome_advantage", returns)
