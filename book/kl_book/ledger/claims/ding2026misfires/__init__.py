"""The claims of "When KL Regularization Misfires in Group Policy Optimization" (ZCPO)."""

from kl_book.ledger.claims.ding2026misfires import (  # noqa: F401 - a section registers its checks
    appendices,
    calibration,
    residues,
)
