"""tinker-cookbook: a formula; the service computes gradients, the cookbook its advantages."""

from __future__ import annotations

from functools import partial

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_reward
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy

_k1: Terms = partial(estimate, "k1", of="sampler")
_PLACE = SourceLocation("tinker_cookbook/rl/metrics.py", "incorporate_kl_penalty")

_ALGORITHM = Algorithm(
    "policy gradient, rewards centered",
    Recipe("mean", policy_loss="importance", aggregate="sum"),
    SourceLocation("tinker_cookbook/rl/data_processing.py", "compute_advantages"),
    after=True,
)

FRAMEWORK = Framework(
    name="tinker",
    title="tinker-cookbook",
    distribution="",
    versions=("commit 9dfcc3a2 (2026-08-19)",),
    settings=tuple(
        in_reward(
            f"tinker.kl_discount_{factor}",
            f"kl_penalty_coef=1.0, kl_discount_factor={factor}.0",
            _k1,
            _PLACE,
            ahead=bool(factor),
            default="of on-policy distillation" if factor == 0 else "",
            algorithms=(_ALGORITHM,),
            beta=None if factor else 0.0,
            note="The mean over the batch that is subtracted is left out.",
        )
        for factor in (0, 1)
    ),
    remedy=Remedy(sequence="tinker.kl_discount_1", token="tinker.kl_discount_0"),
)
