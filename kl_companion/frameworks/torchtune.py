"""torchtune: `get_rewards_ppo`, its advantages and its PPO loss; the GRPO loss is a formula.

The package imports its datasets and models; its functions are cut out of the installed files (see
`installed`). The GRPO loss is in the repository alone: the recipe that needs it is installed, its module is
not.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import estimate, in_loss, in_reward
from kl_companion.frameworks.installed import Distribution, SourceLocation, load, loaded_from
from kl_companion.frameworks.records import Framework, Remedy
from kl_companion.rollout import Rollout

VERSIONS = ("0.6.1",)
_REWARDS = "torchtune/rlhf/rewards.py"


@loaded_from("torchtune", VERSIONS)
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


_GRPO = Algorithm(
    "GRPO",
    Recipe("group_std", eps=1e-4, aggregate="sum"),
    SourceLocation(
        "recipes/dev/grpo_full_finetune_distributed.py",
        "FullGRPOFinetuneRecipeDistributed.generate_trajectory",
    ),
)
_PPO = Algorithm(
    "PPO",
    Recipe("whitened", normalize=by_batch, aggregate="sum"),
    SourceLocation(_REWARDS, "estimate_advantages"),
    policy=policy,
)

FRAMEWORK = Framework(
    name="torchtune",
    title="torchtune",
    distribution="torchtune",
    versions=VERSIONS,
    settings=(
        in_loss(
            "torchtune.grpo",
            "GRPOLoss(kl_coeff=0.1)",
            partial(estimate, "k3"),
            SourceLocation("torchtune/dev/grpo/loss.py", "GRPOLoss"),
            default="of the GRPO losses",
            algorithms=(_GRPO,),
            beta=0.1,
            read="commit bd2a0fc7c (2026-04-23)",
        ),
        in_reward(
            "torchtune.ppo",
            "kl_coeff of the PPO recipe",
            penalty,
            SourceLocation(_REWARDS, "get_rewards_ppo"),
            ahead=True,
            default="of the PPO recipe",
            note="With gamma and lambda of 1. The KL is that of the policy that sampled; PPO's clip is left "
            "out.",
            algorithms=(_PPO,),
            beta=0.01,
        ),
    ),
    remedy=Remedy(sequence="torchtune.ppo", token=None, words="The GRPO losses offer k3 alone."),
)
