"""torchtune and torchforge: formulas; the installable torchtune has no GRPO loss."""

from __future__ import annotations

from functools import partial

from kl_companion.frameworks.formulas import Terms, estimate, in_loss, in_reward
from kl_companion.frameworks.installed import Place
from kl_companion.frameworks.settings import Framework, Remedy

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
            Place("torchtune/dev/grpo/loss.py", "GRPOLoss"),
            default="of the GRPO losses",
        ),
        in_reward(
            "torchtune.ppo",
            "kl_coeff of the PPO recipe",
            _k1,
            Place("torchtune/rlhf/rewards.py", "get_rewards_ppo"),
            ahead=True,
            default="of the PPO recipe",
            note="With gamma and lambda of 1.",
        ),
        in_loss(
            "torchtune.torchforge_grpo",
            "SimpleGRPOLoss(beta=0.1)",
            _k3,
            Place("torchforge: src/forge/losses/grpo_loss.py", "SimpleGRPOLoss"),
            how="sequences",
            default="of torchforge",
        ),
    ),
    remedy=Remedy(sequence="torchtune.ppo", token=None, words="The GRPO losses offer k3 alone."),
)
