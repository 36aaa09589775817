"""The batch that a loss reads (`Rollout`), and its tools: importance ratios, groups, aggregation."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.rollout.aggregation import AGGREGATES as AGGREGATES
    from kl_companion.rollout.aggregation import Aggregate as Aggregate
    from kl_companion.rollout.aggregation import aggregate as aggregate
    from kl_companion.rollout.aggregation import credit as credit
    from kl_companion.rollout.batch import Rollout as Rollout
    from kl_companion.rollout.batch import check_rollout as check_rollout
    from kl_companion.rollout.centering import CENTERINGS as CENTERINGS
    from kl_companion.rollout.centering import Centering as Centering
    from kl_companion.rollout.centering import center as center
    from kl_companion.rollout.centering import leave_one_out as leave_one_out
    from kl_companion.rollout.estimates import per_token as per_token
    from kl_companion.rollout.importance import MISSING as MISSING
    from kl_companion.rollout.importance import SCOPES as SCOPES
    from kl_companion.rollout.importance import Missing as Missing
    from kl_companion.rollout.importance import Scope as Scope
    from kl_companion.rollout.importance import importance_ratio as importance_ratio
    from kl_companion.rollout.importance import importance_weight as importance_weight
    from kl_companion.rollout.masks import masked as masked

__getattr__, __all__, __dir__ = lazy(__name__)
