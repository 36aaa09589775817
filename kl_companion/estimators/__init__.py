"""Estimators of a divergence between policy and reference; importing this package registers all of them."""

from kl_companion.divergences import DIVERGENCES
from kl_companion.estimators import sampled, vocabulary
from kl_companion.estimators.registry import (
    ESTIMATORS,
    Estimator,
    get_estimator,
    register_estimator,
)

__all__ = ["ESTIMATORS", "Estimator", "get_estimator", "register_estimator", "sampled", "vocabulary"]

for _name in ("k_lambda(0.5)", *(f"kf_plus_plus({d})" for d in DIVERGENCES)):
    ESTIMATORS[_name] = get_estimator(_name)
