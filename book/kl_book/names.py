"""The public names of the house under one roof: those at the top of the package and those of its rooms."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import kl_companion

ROOMS: dict[str, str] = {
    "kl_companion.divergences": "Divergence amari_alpha power_divergence",
    "kl_companion.estimators": (
        "top_k_f_divergence top_k_forward_kl top_k_reverse_kl truncated_f_divergence truncated_kl"
    ),
    "kl_companion.kernels": (
        "fused_f_divergence fused_forward_kl fused_kl fused_logp fused_logp_and_entropy "
        "fused_top_k_f_divergence linear_f_divergence linear_forward_kl linear_kl linear_logp "
        "linear_logp_and_entropy linear_top_k_f_divergence"
    ),
    "kl_companion.rollout": "credit importance_weight",
    "kl_companion.theory": (
        "mass_penalty_optimum multiplier_range policy_at reward_transform same_weight split split_of "
        "top_k_mass_optimum trace transform_shape transformed_rewards"
    ),
    "kl_companion.theory.ema": (
        "lag_factor lag_matrix oscillation_threshold regime stability_threshold steady_kl steady_lag"
    ),
    "kl_companion.policy_losses": (
        "apa_loss decompose f_policy_loss log_partition ppo_mask reinforce_loss rwr_loss target_loss"
    ),
    "kl_companion.tabular": (
        "LogitMoments Problem draw_statistics exact_field fisher_matrix follow_anchor learn logit_moments "
        "simulate token_moments token_statistics truncate"
    ),
    "kl_companion.auditing": "Audit",
    "kl_companion.frameworks": "audit_setting",
}
"""Names of rooms that the catalogue of refusals covers and to which pages link, beside those of the top."""


def public_names() -> dict[str, str]:
    """Every public name, and the package or module to import it from."""
    beside = {name: room for room, names in ROOMS.items() for name in names.split()}
    return dict.fromkeys(kl_companion.__all__, "kl_companion") | beside


class _Names:
    """`kl.k3` and `kl.fused_kl`, wherever a name is imported from."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(public_names().get(name, "kl_companion")), name)

    def __iter__(self) -> Iterator[str]:
        return iter(public_names())


kl = _Names()
