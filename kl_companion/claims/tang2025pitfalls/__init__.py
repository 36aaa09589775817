"""The claims of Tang and Munos, "On a few pitfalls in KL divergence gradient estimation for RL"."""

from kl_companion.claims.tang2025pitfalls import (
    accuracy,
    appendices,
    discussion,
    gradients,
    learning,
    partial,
    related,
    sequences,
    values,
)

__all__ = [
    "accuracy",
    "appendices",
    "discussion",
    "gradients",
    "learning",
    "partial",
    "related",
    "sequences",
    "values",
]
