"""The verdict that each row of the register is expected to get, one line each; never imported by the book."""

from tests.expected_claims.emapg2026 import EMA
from tests.expected_claims.reported import ARITHMETIC, REPORTED
from tests.expected_claims.reviews import SHAH, SUMMARY
from tests.expected_claims.tang2025pitfalls import TANG
from tests.expected_claims.wang2025choosing import WANG

__all__ = ["ARITHMETIC", "CORRECTED", "EXPECTED", "REPORTED", "UNCORRECTED"]

EXPECTED = {**TANG, **WANG, **SHAH, **SUMMARY, **EMA, **REPORTED}
# rows that fail and whose correction is words alone: lists of authors, years
UNCORRECTED = ("TM-refs", "WZ-refs", "WZ-refs-shah")
# rows whose check corrects them: those that fail, and three of which the condition decides
CORRECTED = (
    *(id for id, verdict in EXPECTED.items() if verdict in ("misprint", "false as printed")),
    *("TM-3.1-constant", "WZ-8.1-effbeta", "EMA-lem4.2-exact"),
)
CORRECTED = tuple(id for id in CORRECTED if id not in UNCORRECTED)
