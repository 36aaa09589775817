"""What a loss may look at, and what it does with it: the batch, its weights, its groups, its tokens."""

from kl_companion.rollout.aggregation import AGGREGATES, Aggregate, aggregate, credit
from kl_companion.rollout.batch import Rollout, check_rollout, masked, per_token
from kl_companion.rollout.centering import CENTERINGS, Centering, center, leave_one_out
from kl_companion.rollout.importance import (
    MISSING,
    SCOPES,
    Missing,
    Scope,
    importance_ratio,
    importance_weight,
)

__all__ = [
    "AGGREGATES",
    "CENTERINGS",
    "MISSING",
    "SCOPES",
    "Aggregate",
    "Centering",
    "Missing",
    "Rollout",
    "Scope",
    "aggregate",
    "center",
    "check_rollout",
    "credit",
    "importance_ratio",
    "importance_weight",
    "leave_one_out",
    "masked",
    "per_token",
]
