"""The claims of "What is the Alignment Objective of GRPO?" (Vojnovic & Yun)."""

from kl_book.ledger.claims.vojnovic2025alignment import (  # noqa: F401 - a section registers its checks
    appendices,
    objective,
    preferences,
    stationary,
    two_answers,
    variants,
)
