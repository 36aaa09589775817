"""torchtune: `get_rewards_ppo`, its advantages and its PPO loss; the GRPO loss is a formula.

The package imports its datasets and models; its functions are cut out of the installed files (see
`installed`). The GRPO loss is in the repository alone: the recipe that needs it is installed, its module is
not.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from kl_companion.frameworks.installed import Distribution, known, load, loaded_from
from kl_companion.rollout import Rollout

__all__ = ["by_batch", "penalty", "policy"]

_REWARDS = "torchtune/rlhf/rewards.py"


@loaded_from(*known("torchtune"))
def functions(torchtune: Distribution) -> SimpleNamespace:
    """torchtune's own functions, out of the installed files; `Unavailable` without them."""
    names = ("get_rewards_ppo", "estimate_advantages", "whiten", "masked_mean", "masked_var")
    rewards = load(torchtune, _REWARDS, *names)
    given = {"nn": torch.nn, "rlhf": SimpleNamespace(**rewards)}
    return SimpleNamespace(**rewards, **load(torchtune, "torchtune/rlhf/loss/ppo.py", "PPOLoss", given=given))


def penalty(rollout: Rollout) -> torch.Tensor:
    """What `get_rewards_ppo` subtracts from the rewards, [batch, seq]."""
    last = rollout.completion_mask.sum(-1).long() - 1
    found: torch.Tensor
    found, _, _ = functions().get_rewards_ppo(
        torch.zeros_like(rollout.ref_logp[:, 0]), rollout.sampled_from, rollout.ref_logp, 1.0, last
    )
    return -found


def policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """`PPOLoss` without a critic; the tokens of the batch are a constant number (see `records`)."""
    mask, nothing = rollout.completion_mask, torch.zeros_like(advantages)
    loss: torch.Tensor = functions().PPOLoss(epsilon=0.2)(
        rollout.sampled_from,
        rollout.logp,
        advantages,
        *(nothing, nothing, nothing),
        padding_masks=mask.bool(),
        value_padding_masks=mask.bool(),
    )[0]
    return loss * mask.sum() / len(mask)


def by_batch(returns: torch.Tensor) -> torch.Tensor:
    """`estimate_advantages` without a critic, each row a batch of answers of one token."""

    def one(batch: torch.Tensor) -> torch.Tensor:
        column = batch.unsqueeze(1)
        mask = torch.ones_like(column, dtype=torch.bool)
        found: torch.Tensor
        found, _ = functions().estimate_advantages(torch.zeros_like(column), column, 1.0, 1.0, masks=mask)
        return found.squeeze(1)

    return torch.stack([one(batch) for batch in returns])
