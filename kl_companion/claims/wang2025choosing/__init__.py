"""The claims of Wang and Zhang, "Choosing KL Estimators in RL"."""

from kl_companion.claims.wang2025choosing import centering, gradients, guide, rewards, values, variances

__all__ = ["centering", "gradients", "guide", "rewards", "values", "variances"]
