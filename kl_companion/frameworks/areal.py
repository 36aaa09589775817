"""AReaL: a formula, because its package does not import without its servers."""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.advantages import standardized
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import estimate, in_loss, in_reward, ratio
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy
from kl_companion.rollout import Rollout

_CLAMP = 10.0
_ACTOR = "areal/trainer/ppo/actor.py"
_ALGORITHMS = (
    Algorithm("PPO", Recipe("none", aggregate="sum"), SourceLocation(_ACTOR, "PPOActor._compute_advantages")),
    Algorithm(
        "PPO, advantages normalized",
        Recipe("whitened", normalize=partial(standardized, eps=1e-5), aggregate="sum"),
        SourceLocation("areal/utils/data.py", "Normalization"),
        when="actor.adv_norm is given, as in the examples (std_level: batch)",
        instead="adv_norm.std_level: null",
    ),
)


def penalty(kind: str, rollout: Rollout) -> torch.Tensor:
    """`KLEstimator` of the policy that sampled, [batch, seq]."""
    return estimate(kind, rollout, of="sampler", output_clamp=_CLAMP)


def distilled_alone(rollout: Rollout) -> torch.Tensor:
    """Distillation without rewards: rho sg(log pi - log teacher), [batch, seq]."""
    return (rollout.logp - rollout.ref_logp).detach() * ratio(rollout)


def distilled_jointly(rollout: Rollout) -> torch.Tensor:
    """Distillation beside rewards: the log-ratio itself is differentiated, [batch, seq]."""
    return estimate("k1", rollout)


FRAMEWORK = Framework(
    name="areal",
    title="AReaL",
    distribution="",
    versions=("commit cbff54d64 (2026-08-22, v2.0.0-55)",),
    settings=(
        *(
            in_reward(
                f"areal.reward_{kind}",
                f"actor: kl_ctl=0.1, kl_estimator={kind}",
                partial(penalty, kind),
                SourceLocation("areal/utils/data.py", "KLEstimator"),
                ahead=True,
                default="of PPOActor" if kind == "k1" else "",
                note="With discount and lambda of 1.",
                algorithms=_ALGORITHMS,
                beta=0.1 if kind == "k1" else None,
            )
            for kind in ("k1", "k2", "k3")
        ),
        in_loss(
            "areal.distillation_joint",
            "actor: rl_loss_weight=1.0 with a teacher",
            distilled_jointly,
            SourceLocation(_ACTOR, "grpo_loss_fn"),
            default="of distillation (rl_loss_weight is 1.0 by default)",
        ),
        in_loss(
            "areal.distillation_alone",
            "actor: rl_loss_weight=0 with a teacher",
            distilled_alone,
            SourceLocation(_ACTOR, "grpo_loss_fn"),
        ),
    ),
    remedy=Remedy(sequence="areal.reward_k1", token="areal.distillation_alone"),
)
