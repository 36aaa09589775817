"""Estimators of a divergence between policy and reference; importing this package registers all of them."""

from kl_companion.divergences import DIVERGENCES
from kl_companion.estimators import sampled, top_k, vocabulary
from kl_companion.estimators.registry import (
    ESTIMATORS,
    Estimator,
    get_estimator,
    register_estimator,
)

__all__ = ["ESTIMATORS", "Estimator", "get_estimator", "register_estimator", "sampled", "top_k", "vocabulary"]

for _name in (
    "k_lambda(0.5)",
    *(f"kf_plus_plus({d})" for d in DIVERGENCES),
    "top_k_reverse_kl(32)",
    "top_k_forward_kl(32)",
):
    ESTIMATORS[_name] = get_estimator(_name)
