"""What does your KL term optimize? Estimators, derivations and audits of KL regularization.

The names that chapters and README use most are here, and are loaded when first used: ``import kl_companion``
is light, and a tool that reads a script can see which module each name comes from. Everything else is a name
of a room: ``from kl_companion.kernels import fused_kl``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.auditing.auditor import audit as audit
    from kl_companion.auditing.updates.audit import audit_update as audit_update
    from kl_companion.auditing.updates.recipe import Recipe as Recipe
    from kl_companion.auditing.worlds.objectives import OBJECTIVES as OBJECTIVES
    from kl_companion.auditing.worlds.objectives import register_objective as register_objective
    from kl_companion.divergences.registry import DIVERGENCES as DIVERGENCES
    from kl_companion.divergences.registry import get_divergence as get_divergence
    from kl_companion.divergences.registry import register_divergence as register_divergence
    from kl_companion.estimators.record import Estimator as Estimator
    from kl_companion.estimators.registry import ESTIMATORS as ESTIMATORS
    from kl_companion.estimators.registry import get_estimator as get_estimator
    from kl_companion.estimators.registry import register_estimator as register_estimator
    from kl_companion.estimators.sampled import k1 as k1
    from kl_companion.estimators.sampled import k2 as k2
    from kl_companion.estimators.sampled import k3 as k3
    from kl_companion.estimators.sampled import k3_plus_plus as k3_plus_plus
    from kl_companion.estimators.sampled import k4 as k4
    from kl_companion.estimators.sampled import k5 as k5
    from kl_companion.estimators.sampled import k_lambda as k_lambda
    from kl_companion.estimators.sampled import kf_plus_plus as kf_plus_plus
    from kl_companion.estimators.top_k import TopK as TopK
    from kl_companion.estimators.vocabulary import exact_forward_kl as exact_forward_kl
    from kl_companion.estimators.vocabulary import exact_kl as exact_kl
    from kl_companion.estimators.vocabulary import f_divergence as f_divergence
    from kl_companion.kl_term import KLTerm as KLTerm
    from kl_companion.losses import kl_loss as kl_loss
    from kl_companion.losses import kl_reward as kl_reward
    from kl_companion.losses import kl_terms as kl_terms
    from kl_companion.losses import policy_gradient_loss as policy_gradient_loss
    from kl_companion.rollout.aggregation import aggregate as aggregate
    from kl_companion.rollout.batch import Rollout as Rollout
    from kl_companion.rollout.centering import center as center
    from kl_companion.rollout.centering import leave_one_out as leave_one_out
    from kl_companion.rollout.estimates import per_token as per_token
    from kl_companion.rollout.importance import importance_ratio as importance_ratio
    from kl_companion.tabular.expectations import descend as descend
    from kl_companion.tabular.expectations import expected_gradient as expected_gradient
    from kl_companion.tabular.expectations import expected_value as expected_value
    from kl_companion.tabular.moments import exact_moments as exact_moments
    from kl_companion.tabular.worlds import bandit as bandit
    from kl_companion.tabular.worlds import prefix_tree as prefix_tree
    from kl_companion.tabular.worlds import stack as stack
    from kl_companion.theory.calculus import gradient_weight as gradient_weight
    from kl_companion.theory.calculus import implied_f as implied_f
    from kl_companion.theory.calculus import match_divergence as match_divergence
    from kl_companion.theory.calculus import value as value
    from kl_companion.theory.optima import optimal_policy as optimal_policy

__version__ = "0.1.0"

__getattr__, __all__, __dir__ = lazy(__name__)
