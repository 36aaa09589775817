"""torchforge: a formula, because it is not on the registry."""

from __future__ import annotations

from functools import partial

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import estimate, in_loss
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy

_GRPO = Algorithm(
    "GRPO",
    Recipe("group_std", eps=1e-4, aggregate="sequence_mean"),
    SourceLocation("apps/grpo/main.py", "ComputeAdvantages"),
)

FRAMEWORK = Framework(
    name="torchforge",
    title="torchforge",
    distribution="",
    versions=("commit 6e77f0b3 (2025-11-15)",),
    settings=(
        in_loss(
            "torchforge.grpo",
            "SimpleGRPOLoss(beta=0.1)",
            partial(estimate, "k3"),
            SourceLocation("src/forge/losses/grpo_loss.py", "SimpleGRPOLoss"),
            how="sequences",
            default="of the class",
            algorithms=(_GRPO,),
            beta=0.1,
        ),
    ),
    remedy=Remedy(sequence=None, token=None, words="The loss offers k3 alone."),
)
