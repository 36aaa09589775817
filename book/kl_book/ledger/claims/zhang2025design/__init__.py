"""The claims of "On the Design of KL-Regularized Policy Gradient Algorithms for LLM Reasoning" (RPG)."""

from kl_book.ledger.claims.zhang2025design import (  # noqa: F401 - a section registers its checks
    algorithms,
    clips,
    grpo,
    losses,
    preliminaries,
    runs,
)
