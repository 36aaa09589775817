"""The claims of "Future-KL Regularized GRPO" (FRPO)."""

from kl_book.ledger.claims.yao2026future import (  # noqa: F401 - a section registers its checks
    appendices,
    credit,
    estimators,
    future,
    local,
    merging,
    optimum,
    placement,
    utility,
)
