"""SkyRL: a formula, because its package does not import without Ray."""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_loss, in_reward
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy
from kl_companion.rollout import Rollout

_PLACE = SourceLocation("skyrl/backends/skyrl_train/utils/ppo_utils.py", "compute_approx_kl")
_CHOICE = "trainer.algorithm.advantage_estimator="
_ALGORITHMS = (
    Algorithm(
        "GRPO",
        Recipe("group_std", eps=1e-6),
        SourceLocation(_PLACE.file, "compute_grpo_outcome_advantage"),
        instead="trainer.algorithm.grpo_norm_by_std=false",
    ),
    Algorithm(
        "RLOO",
        Recipe("leave_one_out"),
        SourceLocation(_PLACE.file, "compute_rloo_outcome_advantage"),
        when=f"{_CHOICE}rloo",
    ),
    Algorithm(
        "PPO",
        Recipe("whitened", eps=1e-8),
        SourceLocation(_PLACE.file, "compute_gae_advantage_return"),
        when=f"{_CHOICE}gae",
        instead=f"{_CHOICE}rloo",
    ),
    Algorithm(
        "REINFORCE++",
        Recipe("whitened", eps=1e-8),
        SourceLocation(_PLACE.file, "compute_reinforce_plus_plus_outcome_advantage"),
        when=f"{_CHOICE}reinforce++",
        instead=f"{_CHOICE}rloo",
    ),
)
_KINDS = ("k3", "k1", "k2", "abs")


def terms(kind: str, rollout: Rollout, **options: str) -> torch.Tensor:
    """`compute_approx_kl`: k3 alone is clamped, [batch, seq]."""
    clamps = {"input_clamp": 20.0, "output_clamp": 10.0} if kind == "k3" else {}
    return estimate(kind, rollout, **clamps, **options)  # type: ignore[arg-type]


_opd: Terms = partial(estimate, "k1", of="sampler")

FRAMEWORK = Framework(
    name="skyrl",
    title="SkyRL",
    distribution="",
    versions=("commit a9564572e (2026-08-21)",),
    settings=(
        *(
            in_loss(
                f"skyrl.loss_{kind}",
                f"trainer.algorithm: use_kl_loss=true, kl_loss_coef=0.001, kl_estimator_type={kind}",
                partial(terms, kind),
                _PLACE,
                how="sequences",
                default="of the trainer" if kind == "k3" else "",
                algorithms=_ALGORITHMS,
                beta=0.001 if kind == "k3" else None,
            )
            for kind in _KINDS
        ),
        *(
            in_reward(
                f"skyrl.reward_{kind}",
                f"trainer.algorithm: use_kl_in_reward=true, kl_estimator_type={kind}",
                partial(terms, kind, of="sampler"),
                _PLACE,
                ahead=True,
                default="once use_kl_in_reward is true (the type is shared with the loss)"
                if kind == "k3"
                else "",
                algorithms=_ALGORITHMS,
                beta=0.0 if kind == "k3" else None,
            )
            for kind in _KINDS
        ),
        in_reward(
            "skyrl.opd",
            "the example of on-policy distillation (advantage estimator no_op)",
            _opd,
            SourceLocation(
                "examples/train/on_policy_distillation/main_on_policy_distill.py", "apply_reward_kl_penalty"
            ),
            ahead=False,
        ),
    ),
    remedy=Remedy(
        sequence="skyrl.reward_k1",
        token="skyrl.opd",
        words="In the loss, k2 has the token-level gradient on-policy, divided by each sequence's length.",
    ),
)
