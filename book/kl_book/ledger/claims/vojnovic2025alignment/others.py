"""What is not computed here: training runs, and rows that nobody has examined yet (vojnovic2025alignment)."""

from __future__ import annotations

from kl_book.ledger.claims.ground.reported import reported
from kl_book.ledger.claims.standard import UNEXAMINED

OPEN: tuple[str, ...] = ()

reported(
    "VY-1.2-trl",
    "the source of TRL as it was in February 2025",
    "Copies of that time have 0.04 as the default of GRPOConfig. In TRL 1.16 the default is 0, and no "
    "reference is loaded.",
)
for _id in OPEN:
    reported(_id, UNEXAMINED)
