"""The claims of "Stabilizing Reinforcement Learning with LLMs" (Zheng et al.)."""

from kl_book.ledger.claims.zheng2025stabilizing import (  # noqa: F401 - a section registers its checks
    appendix,
    objectives,
    practice,
    routing,
)
