"""Which objective does a loss really minimize?"""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.auditing.adapt import as_loss as as_loss
    from kl_companion.auditing.auditor import audit as audit
    from kl_companion.auditing.findings import Condition as Condition
    from kl_companion.auditing.findings import Finding as Finding
    from kl_companion.auditing.objectives import OBJECTIVES as OBJECTIVES
    from kl_companion.auditing.objectives import field as field
    from kl_companion.auditing.objectives import register_objective as register_objective
    from kl_companion.auditing.remedies import remedy as remedy
    from kl_companion.auditing.solve import curl as curl
    from kl_companion.auditing.solve import explain as explain
    from kl_companion.auditing.verdict import Audit as Audit

__getattr__, __all__, __dir__ = lazy(__name__)
