"""What does your KL term optimize? Estimators, derivations and audits of KL regularization.

The public names are loaded when first used, so that ``import kl_companion`` is light and a tool that
reads a script can see which module each name comes from.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_NAMES: dict[str, str] = {
    "DIVERGENCES": "kl_companion.divergences",
    "Divergence": "kl_companion.divergences",
    "amari_alpha": "kl_companion.divergences",
    "get_divergence": "kl_companion.divergences",
    "power_divergence": "kl_companion.divergences",
    "register_divergence": "kl_companion.divergences",
    "ESTIMATORS": "kl_companion.estimators",
    "Estimator": "kl_companion.estimators",
    "get_estimator": "kl_companion.estimators",
    "register_estimator": "kl_companion.estimators",
    "k1": "kl_companion.estimators.sampled",
    "k2": "kl_companion.estimators.sampled",
    "k3": "kl_companion.estimators.sampled",
    "k3_plus_plus": "kl_companion.estimators.sampled",
    "k4": "kl_companion.estimators.sampled",
    "k5": "kl_companion.estimators.sampled",
    "k_lambda": "kl_companion.estimators.sampled",
    "kf_plus_plus": "kl_companion.estimators.sampled",
    "exact_kl": "kl_companion.estimators.vocabulary",
    "exact_forward_kl": "kl_companion.estimators.vocabulary",
    "f_divergence": "kl_companion.estimators.vocabulary",
    "TopK": "kl_companion.estimators.top_k",
    "top_k_f_divergence": "kl_companion.estimators.top_k",
    "top_k_forward_kl": "kl_companion.estimators.top_k",
    "top_k_reverse_kl": "kl_companion.estimators.top_k",
    "truncated_f_divergence": "kl_companion.estimators.top_k",
    "truncated_kl": "kl_companion.estimators.top_k",
    "fused_f_divergence": "kl_companion.estimators.fused",
    "fused_forward_kl": "kl_companion.estimators.fused",
    "fused_kl": "kl_companion.estimators.fused",
    "fused_logp": "kl_companion.estimators.fused",
    "fused_logp_and_entropy": "kl_companion.estimators.fused",
    "fused_top_k_f_divergence": "kl_companion.estimators.fused",
    "linear_f_divergence": "kl_companion.estimators.fused_linear",
    "linear_forward_kl": "kl_companion.estimators.fused_linear",
    "linear_kl": "kl_companion.estimators.fused_linear",
    "linear_logp": "kl_companion.estimators.fused_linear",
    "linear_logp_and_entropy": "kl_companion.estimators.fused_linear",
    "linear_top_k_f_divergence": "kl_companion.estimators.fused_linear",
    "gradient_weight": "kl_companion.theory.calculus",
    "implied_f": "kl_companion.theory.calculus",
    "match_divergence": "kl_companion.theory.calculus",
    "same_weight": "kl_companion.theory.calculus",
    "trace": "kl_companion.theory.calculus",
    "value": "kl_companion.theory.calculus",
    "mass_penalty_optimum": "kl_companion.theory.masked",
    "split": "kl_companion.theory.masked",
    "split_of": "kl_companion.theory.masked",
    "top_k_mass_optimum": "kl_companion.theory.masked",
    "multiplier_range": "kl_companion.theory.optima",
    "optimal_policy": "kl_companion.theory.optima",
    "policy_at": "kl_companion.theory.optima",
    "lag_factor": "kl_companion.theory.ema",
    "lag_matrix": "kl_companion.theory.ema",
    "oscillation_threshold": "kl_companion.theory.ema",
    "regime": "kl_companion.theory.ema",
    "stability_threshold": "kl_companion.theory.ema",
    "steady_kl": "kl_companion.theory.ema",
    "steady_lag": "kl_companion.theory.ema",
    "reward_transform": "kl_companion.theory.transforms",
    "transform_shape": "kl_companion.theory.transforms",
    "transformed_rewards": "kl_companion.theory.transforms",
    "Rollout": "kl_companion.rollout",
    "aggregate": "kl_companion.rollout",
    "credit": "kl_companion.rollout",
    "center": "kl_companion.rollout",
    "importance_ratio": "kl_companion.rollout",
    "importance_weight": "kl_companion.rollout",
    "leave_one_out": "kl_companion.rollout",
    "per_token": "kl_companion.rollout",
    "kl_loss": "kl_companion.losses",
    "kl_reward": "kl_companion.losses",
    "kl_terms": "kl_companion.losses",
    "policy_gradient_loss": "kl_companion.losses",
    "apa_loss": "kl_companion.policy_losses",
    "decompose": "kl_companion.policy_losses",
    "f_policy_loss": "kl_companion.policy_losses",
    "log_partition": "kl_companion.policy_losses",
    "ppo_mask": "kl_companion.policy_losses",
    "reinforce_loss": "kl_companion.policy_losses",
    "rwr_loss": "kl_companion.policy_losses",
    "target_loss": "kl_companion.policy_losses",
    "LogitMoments": "kl_companion.tabular",
    "Problem": "kl_companion.tabular",
    "bandit": "kl_companion.tabular",
    "descend": "kl_companion.tabular",
    "draw_statistics": "kl_companion.tabular",
    "exact_field": "kl_companion.tabular",
    "exact_moments": "kl_companion.tabular",
    "expected_gradient": "kl_companion.tabular",
    "expected_value": "kl_companion.tabular",
    "fisher_matrix": "kl_companion.tabular",
    "follow_anchor": "kl_companion.tabular",
    "learn": "kl_companion.tabular",
    "logit_moments": "kl_companion.tabular",
    "prefix_tree": "kl_companion.tabular",
    "simulate": "kl_companion.tabular",
    "stack": "kl_companion.tabular",
    "token_moments": "kl_companion.tabular",
    "token_statistics": "kl_companion.tabular",
    "truncate": "kl_companion.tabular",
    "Audit": "kl_companion.auditing",
    "OBJECTIVES": "kl_companion.auditing",
    "audit": "kl_companion.auditing",
    "register_objective": "kl_companion.auditing",
    "audit_setting": "kl_companion.frameworks",
}

__all__ = [*_NAMES, "tables", "plotting"]


def __getattr__(name: str) -> Any:
    if name in ("tables", "plotting"):
        return import_module(f"kl_companion.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'kl_companion' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
