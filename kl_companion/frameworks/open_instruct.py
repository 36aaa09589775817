"""open-instruct: a formula, because it is not on the registry."""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import estimate, in_loss, ratio
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy
from kl_companion.rollout import Rollout

_CLAMP = 40.0
_PLACE = SourceLocation("open_instruct/model_utils.py", "estimate_kl")
_ALGORITHMS = (
    Algorithm(
        "GRPO",
        Recipe("mean", aggregate="sum"),
        SourceLocation("open_instruct/data_loader.py", "DataPreparationActor"),
    ),
    Algorithm(
        "GRPO, standardized",
        Recipe("group_std", eps=1e-8, unbiased=False, aggregate="sum"),
        SourceLocation("open_instruct/data_loader.py", "DataPreparationActor"),
        when="--advantage_normalization_type standard",
        instead="--advantage_normalization_type centered",
    ),
)
_KINDS = ("k1", "k2", "k3", "ratio_k1")


def terms(index: int, rollout: Rollout) -> torch.Tensor:
    """The four estimates of `estimate_kl`, by their index; [batch, seq]."""
    kind = _KINDS[index]
    if kind == "ratio_k1":
        return estimate("k1", rollout, input_clamp=_CLAMP, weight=ratio(rollout))
    return estimate(kind, rollout, input_clamp=_CLAMP)


FRAMEWORK = Framework(
    name="open_instruct",
    title="open-instruct",
    distribution="",
    versions=("commit e6c3044aa (2026-08-20)",),
    settings=tuple(
        in_loss(
            f"open_instruct.kl_estimator_{index}",
            f"--beta 0.05 --kl_estimator {index}",
            partial(terms, index),
            _PLACE,
            default="of grpo_utils.compute_grpo_loss" if index == 2 else "",
            algorithms=_ALGORITHMS,
            beta=0.05 if index == 2 else None,
            note="The ratio to the policy that sampled keeps its gradient." if index == 3 else "",
        )
        for index in (2, 0, 1, 3)
    ),
    remedy=Remedy(
        sequence=None,
        token="open_instruct.kl_estimator_3",
        words="There is no KL in the reward.",
    ),
)
