"""Unsloth: a formula; it replaces the loss of TRL's trainer and reads TRL's arguments."""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import estimate, in_loss, ratio
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy
from kl_companion.rollout import Rollout

_PLACE = SourceLocation("unsloth_zoo/rl_replacements.py", "grpo_compute_loss")

_GRPO = Algorithm(  # TRL's own code makes the advantages, which Unsloth leaves as it is
    "GRPO",
    Recipe("group_std", eps=1e-4, aggregate="sum"),
    SourceLocation("trl/trainer/grpo_trainer.py", "GRPOTrainer._generate_and_score_completions"),
    instead='scale_rewards="none"',
)


def terms(corrected: bool, rollout: Rollout) -> torch.Tensor:
    """k3 with its log-ratio clamped, times the ratio if corrected, clamped again; [batch, seq]."""
    weight = ratio(rollout) if corrected else None
    return estimate("k3", rollout, input_clamp=20.0, output_clamp=10.0, weight=weight)


FRAMEWORK = Framework(
    name="unsloth",
    title="Unsloth",
    distribution="",
    versions=("unsloth_zoo 2026.10.9",),
    settings=tuple(
        in_loss(
            f"unsloth.grpo{'' if corrected else '_uncorrected'}",
            f"GRPOConfig(beta=0.001, use_bias_correction_kl={corrected})",
            partial(terms, corrected),
            _PLACE,
            default="with TRL's own default of use_bias_correction_kl" if corrected else "",
            algorithms=(_GRPO,),
            beta=0.001 if corrected else None,
        )
        for corrected in (True, False)
    ),
    remedy=Remedy(
        sequence=None,
        token="unsloth.grpo",
        words="The product of ratio and k3 is clamped, which TRL's own trainer does not do.",
    ),
)
