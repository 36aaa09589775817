"""What RL frameworks descend when they are told to regularize: their own functions, audited."""

from kl_companion.frameworks.installed import Unavailable
from kl_companion.frameworks.settings import (
    FRAMEWORKS,
    Framework,
    Remedy,
    Setting,
    framework,
    matching,
    setting,
    settings,
)
from kl_companion.frameworks.verdicts import Verdict, audit_setting, dead_zones, rows

__all__ = [
    "FRAMEWORKS",
    "Framework",
    "Remedy",
    "Setting",
    "Unavailable",
    "Verdict",
    "audit_setting",
    "dead_zones",
    "framework",
    "matching",
    "rows",
    "setting",
    "settings",
]
