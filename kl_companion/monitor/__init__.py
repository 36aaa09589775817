"""In a live run: what the logged number is, and what the step really does."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.monitor.doctor.diagnosis import Diagnosis as Diagnosis
    from kl_companion.monitor.doctor.diagnosis import diagnose as diagnose
    from kl_companion.monitor.kl_monitor import KLMonitor as KLMonitor
    from kl_companion.monitor.logs.run_folder import read_run as read_run
    from kl_companion.monitor.observation import Observation as Observation
    from kl_companion.monitor.report.advice import run_verdicts as run_verdicts
    from kl_companion.monitor.report.page import report_html as report_html

__getattr__, __all__, __dir__ = lazy(__name__)
