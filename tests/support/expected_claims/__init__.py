"""The verdict that each row of the register is expected to get, one line each; never imported by the book."""

from tests.support.expected_claims.ding2026misfires import ZCPO
from tests.support.expected_claims.emapg2026 import EMA, EMA_UNCORRECTED
from tests.support.expected_claims.reported import ARITHMETIC, REPORTED
from tests.support.expected_claims.reviews import SHAH, SUMMARY, SUMMARY_UNCORRECTED
from tests.support.expected_claims.tang2025pitfalls import TANG, TANG_UNCORRECTED
from tests.support.expected_claims.wang2025choosing import WANG, WANG_UNCORRECTED
from tests.support.expected_claims.yao2026future import FRPO

__all__ = ["ARITHMETIC", "CORRECTED", "EXPECTED", "REPORTED", "UNCORRECTED"]

EXPECTED = {**TANG, **WANG, **SHAH, **SUMMARY, **EMA, **REPORTED, **FRPO, **ZCPO}
# rows that fail and whose correction is words alone, or a condition
UNCORRECTED = (*EMA_UNCORRECTED, *TANG_UNCORRECTED, *WANG_UNCORRECTED, *SUMMARY_UNCORRECTED)
# rows whose check computes the corrected form
CORRECTED = tuple(
    id
    for id, verdict in EXPECTED.items()
    if verdict in ("misprint", "false as printed") and id not in UNCORRECTED
)
