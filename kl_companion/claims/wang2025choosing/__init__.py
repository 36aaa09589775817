"""The claims of Wang and Zhang, "Choosing KL Estimators in RL"."""

from kl_companion.claims.wang2025choosing import (
    centering,
    directions,
    gradients,
    guide,
    multistep,
    rewards,
    spreads,
    values,
    variances,
)

__all__ = [
    "centering",
    "directions",
    "gradients",
    "guide",
    "multistep",
    "rewards",
    "spreads",
    "values",
    "variances",
]
