"""Which objective does a loss really descend?"""

from kl_companion.auditing.audit import audit
from kl_companion.auditing.objectives import OBJECTIVES, register_objective
from kl_companion.auditing.remedy import remedy
from kl_companion.auditing.solve import curl, explain
from kl_companion.auditing.verdict import Audit, Case, Condition

__all__ = [
    "OBJECTIVES",
    "Audit",
    "Case",
    "Condition",
    "audit",
    "curl",
    "explain",
    "register_objective",
    "remedy",
]
