"""The claims of the sources, one check each: `run` says which hold, and by how much the others fail."""

from kl_companion.claims.ledger import (
    CLAIMS,
    CORRECTED,
    FAILING,
    SOURCES,
    STANDARD,
    VERDICTS,
    Claim,
    Evidence,
    Row,
    claim,
    register,
    run,
)

__all__ = [
    "CLAIMS",
    "CORRECTED",
    "FAILING",
    "SOURCES",
    "STANDARD",
    "VERDICTS",
    "Claim",
    "Evidence",
    "Row",
    "claim",
    "register",
    "run",
]
