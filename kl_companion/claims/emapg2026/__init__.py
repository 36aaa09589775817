"""The claims of "EMA Policy Gradient: Taming Reinforcement Learning for LLMs with EMA Anchor and Top-k KL"."""

from kl_companion.claims.emapg2026 import (
    f_divergences,
    sampled,
    sequences,
    synthetic,
    table_one,
    top_k,
    weights,
)

__all__ = ["f_divergences", "sampled", "sequences", "synthetic", "table_one", "top_k", "weights"]
