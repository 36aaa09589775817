"""Which objective does a loss really minimize?"""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.auditing.auditor import audit as audit
    from kl_companion.auditing.fit.findings import Finding as Finding
    from kl_companion.auditing.fit.least_squares import curl as curl
    from kl_companion.auditing.fit.least_squares import explain as explain
    from kl_companion.auditing.judgment.verdict import Audit as Audit
    from kl_companion.auditing.reading.subject import as_loss as as_loss
    from kl_companion.auditing.repair.remedies import remedy as remedy
    from kl_companion.auditing.worlds.objectives import OBJECTIVES as OBJECTIVES
    from kl_companion.auditing.worlds.objectives import field as field
    from kl_companion.auditing.worlds.objectives import register_objective as register_objective
    from kl_companion.auditing.worlds.trees import Condition as Condition

__getattr__, __all__, __dir__ = lazy(__name__)
