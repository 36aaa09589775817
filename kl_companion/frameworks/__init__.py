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

__getattr__, __all__, __dir__ = lazy(__name__)
