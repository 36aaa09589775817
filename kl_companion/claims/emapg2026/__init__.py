"""The claims of "EMA Policy Gradient" (EMA anchor and Top-k KL)."""

from kl_companion.claims.emapg2026 import (
    appendices,
    details,
    f_divergences,
    importance,
    sampled,
    sequences,
    synthetic,
    table_five,
    table_one,
    top_k,
    weight_tables,
    weights,
)

__all__ = [
    "appendices",
    "details",
    "f_divergences",
    "importance",
    "sampled",
    "sequences",
    "synthetic",
    "table_five",
    "table_one",
    "top_k",
    "weight_tables",
    "weights",
]
