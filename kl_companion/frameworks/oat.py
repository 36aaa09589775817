"""oat: a formula, because it stands in the middle of its learner's training step."""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_loss, in_reward
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy
from kl_companion.rollout import Rollout

_PLACE = SourceLocation("oat/algorithms/ppo.py", "PPOLearner.learning_step")
_CRITIC = "--critic_type"
_MONTE_CARLO = SourceLocation(_PLACE.file, "PPOLearner.compute_monte_carlo_advantages")
_DR_GRPO = Algorithm("Dr. GRPO", Recipe("mean", aggregate="sum"), _MONTE_CARLO)
_GRPO = Algorithm(
    "GRPO",
    Recipe("group_std", eps=1e-8, aggregate="sequence_mean"),
    _MONTE_CARLO,
    when=f"{_CRITIC} grpo",
    instead=f"{_CRITIC} drgrpo",
)
_PPO = Algorithm(
    "PPO",
    Recipe("none", aggregate="sequence_mean"),
    SourceLocation(_PLACE.file, "PPOLearner.compute_ppo_advantages"),
    when=f"{_CRITIC} ppo",
)

k3: Terms = partial(estimate, "k3", input_clamp=40.0)
_k1: Terms = partial(estimate, "k1", of="sampler")


def _ignored(rollout: Rollout) -> torch.Tensor:
    """The line of several turns that would charge the KL is a comment; [batch, seq]."""
    return torch.zeros_like(rollout.sampled_from)


FRAMEWORK = Framework(
    name="oat",
    title="oat",
    distribution="",
    versions=("commit c1a074c (2025-10-31, v0.2.3)",),
    settings=(
        in_loss(
            "oat.loss",
            f"--beta 0.1 {_CRITIC} drgrpo",
            k3,
            _PLACE,
            default="of PPOArgs (beta is 0.1 by default, an option that is shared with preference learning)",
            note="The log-ratio is clamped at 40.",
            algorithms=(_DR_GRPO,),
            beta=0.1,
        )._replace(aggregation="sum / generate_max_length, mean over sequences"),
        in_loss(
            "oat.loss_grpo",
            f"--beta 0.1 {_CRITIC} grpo (also ppo)",
            k3,
            _PLACE,
            how="sequences",
            default=f"once {_CRITIC} is grpo or ppo (beta is 0.1 by default)",
            note="The log-ratio is clamped at 40.",
            algorithms=(_GRPO, _PPO),
            beta=0.1,
        ),
        in_reward(
            "oat.reward",
            f"--kl_penalty_coef ... {_CRITIC} drgrpo",
            _k1,
            _PLACE,
            ahead=True,
            note="Beside it the loss has its own KL until --beta is 0. With --critic_type grpo or ppo the "
            "policy loss takes the mean of each answer.",
            algorithms=(_DR_GRPO, _GRPO, _PPO),
            beta=0.0,
        ),
        in_reward(
            "oat.reward_multiturn",
            "--kl_penalty_coef ..., learner of several turns",
            _ignored,
            SourceLocation("oat/algorithms/ppo_multiturn.py", "PPOMultiTurnLearner.learning_step"),
            ahead=True,
            note="The option is read, the reference is loaded, and the KL is not charged.",
        ),
    ),
    remedy=Remedy(
        sequence="oat.reward",
        token=None,
        words="With --beta 0; the loss offers k3 alone.",
    ),
)
