"""In a live run: what the logged number is, and what the step really does."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.monitor.kl_monitor import KLMonitor as KLMonitor
    from kl_companion.monitor.observation import Observation as Observation

_NAMES: dict[str, str] = {
    "KLMonitor": "kl_companion.monitor.kl_monitor",
    "Observation": "kl_companion.monitor.observation",
}
__getattr__, __all__, __dir__ = lazy(__name__, _NAMES)
