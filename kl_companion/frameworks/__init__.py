"""Audits of the KL terms of RL frameworks, by the frameworks' own functions."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.frameworks.installed import Unavailable as Unavailable
    from kl_companion.frameworks.records import Framework as Framework
    from kl_companion.frameworks.records import Remedy as Remedy
    from kl_companion.frameworks.records import Setting as Setting
    from kl_companion.frameworks.registry import FRAMEWORKS as FRAMEWORKS
    from kl_companion.frameworks.registry import framework as framework
    from kl_companion.frameworks.registry import matching as matching
    from kl_companion.frameworks.registry import setting as setting
    from kl_companion.frameworks.registry import settings as settings
    from kl_companion.frameworks.verdicts import Verdict as Verdict
    from kl_companion.frameworks.verdicts import audit_setting as audit_setting
    from kl_companion.frameworks.verdicts import dead_zones as dead_zones
    from kl_companion.frameworks.verdicts import rows as rows

_NAMES: dict[str, str] = {
    "Unavailable": "kl_companion.frameworks.installed",
    "Framework": "kl_companion.frameworks.records",
    "Remedy": "kl_companion.frameworks.records",
    "Setting": "kl_companion.frameworks.records",
    "FRAMEWORKS": "kl_companion.frameworks.registry",
    "framework": "kl_companion.frameworks.registry",
    "matching": "kl_companion.frameworks.registry",
    "setting": "kl_companion.frameworks.registry",
    "settings": "kl_companion.frameworks.registry",
    "Verdict": "kl_companion.frameworks.verdicts",
    "audit_setting": "kl_companion.frameworks.verdicts",
    "dead_zones": "kl_companion.frameworks.verdicts",
    "rows": "kl_companion.frameworks.verdicts",
}
__getattr__, __all__, __dir__ = lazy(__name__, _NAMES)
