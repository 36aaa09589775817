"""The verdict that each row of the register is expected to get, one line each; never imported by the book."""

from tests.expected_claims.emapg2026 import EMA
from tests.expected_claims.reported import ARITHMETIC, REPORTED
from tests.expected_claims.reviews import SHAH, SUMMARY
from tests.expected_claims.tang2025pitfalls import TANG
from tests.expected_claims.wang2025choosing import WANG

__all__ = ["ARITHMETIC", "EXPECTED", "REPORTED"]

EXPECTED = {**TANG, **WANG, **SHAH, **SUMMARY, **EMA, **REPORTED}
