"""ROLL: a formula, because it is not on the registry. ``full`` wants whole distributions and is left out."""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import estimate, in_loss, in_reward
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy
from kl_companion.rollout import Rollout

_PLACE = SourceLocation("roll/utils/functionals.py", "compute_approx_kl")
_ALGORITHMS = (
    Algorithm(
        "PPO", Recipe("none", aggregate="sequence_mean"), SourceLocation(_PLACE.file, "compute_advantage")
    ),
    Algorithm(
        "GRPO",
        Recipe("group_std", eps=1e-6, aggregate="sequence_mean"),
        SourceLocation(_PLACE.file, "reward_norm"),
        when="adv_estimator: grpo",
        instead="adv_estimator: reinforce",
        after=True,
    ),
)
_KINDS = {"kl": "k1", "abs": "abs", "mse": "k2", "k3": "k3"}


def clamped_k3(rollout: Rollout) -> torch.Tensor:
    """k3 with its value clamped, [batch, seq]; the loss takes no other."""
    return estimate("k3", rollout, output_clamp=10.0)


def penalty(name: str, rollout: Rollout) -> torch.Tensor:
    """`compute_approx_kl` of the policy that sampled, by ROLL's own names; [batch, seq]."""
    return estimate(_KINDS[name], rollout, of="sampler", output_clamp=10.0 if name == "k3" else None)


FRAMEWORK = Framework(
    name="roll",
    title="ROLL",
    distribution="",
    versions=("commit 8eb27cc2d (2026-08-18)",),
    settings=(
        in_loss(
            "roll.loss",
            "use_kl_loss: true, kl_loss_coef: ...",
            clamped_k3,
            _PLACE,
            how="sequences",
            default="once use_kl_loss is true (k3 is the only one)",
            algorithms=_ALGORITHMS,
            beta=0.0,
        ),
        *(
            in_reward(
                f"roll.reward_{name}",
                f"init_kl_coef: 0.2, kl_penalty: {name}, add_token_level_kl: true",
                partial(penalty, name),
                _PLACE,
                ahead=True,
                default="once add_token_level_kl is true" if name == "kl" else "",
                algorithms=_ALGORITHMS,
                beta=0.0 if name == "kl" else None,
            )
            for name in _KINDS
        ),
    ),
    remedy=Remedy(sequence="roll.reward_kl", token=None, words="The loss offers k3 alone."),
)
