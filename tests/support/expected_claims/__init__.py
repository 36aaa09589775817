"""The verdict that each row of the register is expected to get, one line each; never imported by the book."""

from tests.support.expected_claims.ding2026misfires import ZCPO
from tests.support.expected_claims.emapg2026 import EMA, EMA_UNCORRECTED
from tests.support.expected_claims.reported import ARITHMETIC, REPORTED
from tests.support.expected_claims.reviews import SHAH, SUMMARY, SUMMARY_UNCORRECTED
from tests.support.expected_claims.tang2025pitfalls import TANG, TANG_UNCORRECTED
from tests.support.expected_claims.vojnovic2025alignment import VY
from tests.support.expected_claims.wang2025choosing import WANG, WANG_UNCORRECTED
from tests.support.expected_claims.yao2026future import FRPO
from tests.support.expected_claims.zhang2025design import RPG
from tests.support.expected_claims.zheng2025stabilizing import QW

__all__ = ["ARITHMETIC", "CORRECTED", "EXPECTED", "REPORTED", "UNCORRECTED"]

EXPECTED = {**TANG, **WANG, **SHAH, **SUMMARY, **EMA, **REPORTED, **FRPO, **ZCPO, **VY, **RPG, **QW}
# rows that fail and whose correction is words alone, or a condition
UNCORRECTED = (*EMA_UNCORRECTED, *TANG_UNCORRECTED, *WANG_UNCORRECTED, *SUMMARY_UNCORRECTED)
# rows whose check computes the corrected form
CORRECTED = tuple(
    id
    for id, verdict in EXPECTED.items()
    if verdict in ("misprint", "false as printed") and id not in UNCORRECTED
)
