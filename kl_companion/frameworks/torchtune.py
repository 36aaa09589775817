"""torchtune and torchforge: formulas; the installable torchtune has no GRPO loss."""

from __future__ import annotations

from functools import partial

from kl_companion.auditing.updates.advantages import whitened
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_loss, in_reward
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy

_REWARDS = "torchtune/rlhf/rewards.py"
_GRPO = Algorithm(
    "GRPO",
    Recipe("group_std", eps=1e-4, aggregate="sum"),
    SourceLocation(
        "recipes/dev/grpo_full_finetune_distributed.py",
        "GRPOFullFinetuneRecipeDistributed.generate_trajectory",
    ),
)
_FORGE = Algorithm(
    "GRPO (torchforge)",
    Recipe("group_std", eps=1e-4, aggregate="sequence_mean"),
    SourceLocation("torchforge: apps/grpo/main.py", "ComputeAdvantages"),
)
_PPO = Algorithm(
    "PPO",
    Recipe("whitened", normalize=partial(whitened, keep_mean=True), aggregate="sum"),
    SourceLocation(_REWARDS, "estimate_advantages"),
)
_k3: Terms = partial(estimate, "k3")
_k1: Terms = partial(estimate, "k1", of="sampler")

FRAMEWORK = Framework(
    name="torchtune",
    title="torchtune and torchforge",
    distribution="",
    versions=("torchtune commit bd2a0fc7c (2026-04-23), torchforge commit 6e77f0b3 (2025-11-15)",),
    settings=(
        in_loss(
            "torchtune.grpo",
            "GRPOLoss(kl_coeff=0.1)",
            _k3,
            SourceLocation("torchtune/dev/grpo/loss.py", "GRPOLoss"),
            default="of the GRPO losses",
            algorithms=(_GRPO,),
            beta=0.1,
        ),
        in_reward(
            "torchtune.ppo",
            "kl_coeff of the PPO recipe",
            _k1,
            SourceLocation(_REWARDS, "get_rewards_ppo"),
            ahead=True,
            default="of the PPO recipe",
            note="With gamma and lambda of 1.",
            algorithms=(_PPO,),
            beta=0.01,
        ),
        in_loss(
            "torchtune.torchforge_grpo",
            "SimpleGRPOLoss(beta=0.1)",
            _k3,
            SourceLocation("torchforge: src/forge/losses/grpo_loss.py", "SimpleGRPOLoss"),
            how="sequences",
            default="of torchforge",
            algorithms=(_FORGE,),
            beta=0.1,
        ),
    ),
    remedy=Remedy(sequence="torchtune.ppo", token=None, words="The GRPO losses offer k3 alone."),
)
