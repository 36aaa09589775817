"""Unsloth: `grpo_compute_loss`, which replaces the loss of TRL's trainer and reads TRL's arguments.

The package imports Triton and more, and replaces parts of other packages; the function is cut out of the
installed file (see `installed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import TOKENS
from kl_companion.frameworks.installed import SourceLocation, find, load
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

VERSIONS = ("2026.10.9",)
_PLACE = SourceLocation("unsloth_zoo/rl_replacements.py", "grpo_compute_loss")


@cache
def _function() -> Callable[..., Any]:
    found: Callable[..., Any] = load(find("unsloth_zoo", VERSIONS), *_PLACE[:2], given={"math": math})[
        _PLACE.function
    ]
    return found


def grpo(rollout: Rollout, *, corrected: bool = True, advantages: torch.Tensor | None = None) -> torch.Tensor:
    """`grpo_compute_loss` with beta = 1 and advantages of zero, or with advantages and without KL."""
    count = len(rollout.tokens)
    loss: torch.Tensor = _function()(
        rollout.ref_logp,
        rollout.logp,
        rollout.sampled_from,
        None,
        rollout.tokens,
        rollout.completion_mask,
        1.0 if advantages is None else 0.0,
        torch.zeros_like(rollout.ref_logp[:, 0]) if advantages is None else advantages,
        loss_type="dapo",
        num_items_in_batch=count,
        use_bias_correction_kl=corrected,
    )[0]
    return loss


def _policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    return grpo(rollout, advantages=advantages)


_GRPO = Algorithm(  # TRL's own code makes the advantages, which Unsloth leaves as it is
    "GRPO",
    Recipe("group_std", eps=1e-4, aggregate="sum"),
    SourceLocation("trl/trainer/grpo_trainer.py", "GRPOTrainer._generate_and_score_completions", "trl"),
    instead='scale_rewards="none"',
    policy=_policy,
)


def _grpo(corrected: bool) -> Setting:
    return Setting(
        name=f"unsloth.grpo{'' if corrected else '_uncorrected'}",
        option=f"GRPOConfig(beta=0.001, use_bias_correction_kl={corrected})",
        loss=partial(grpo, corrected=corrected),
        place=_PLACE,
        placement="loss",
        level="token",
        aggregation=TOKENS,
        default="once beta > 0, with TRL's own default of use_bias_correction_kl" if corrected else "",
        note="By default beta is 0.0 with the losses dapo, the default, and dr_grpo; with others 0.001.",
        algorithms=(_GRPO,),
        beta=0.0 if corrected else None,
    )


FRAMEWORK = Framework(
    name="unsloth",
    title="Unsloth",
    distribution="unsloth_zoo",
    versions=VERSIONS,
    settings=tuple(_grpo(corrected) for corrected in (True, False)),
    remedy=Remedy(
        sequence=None,
        token="unsloth.grpo",
        words="The product of ratio and k3 is clamped, which TRL's own trainer does not do.",
    ),
)
