"""In a live run: what the logged KL is, and what the step does; read, judged and shown as a page."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.monitor.advice import run_verdicts as run_verdicts
    from kl_companion.monitor.report import report_html as report_html
    from kl_companion.monitor.run_folder import MonitoredRun as MonitoredRun
    from kl_companion.monitor.run_folder import RunRow as RunRow
    from kl_companion.monitor.run_folder import RunToken as RunToken
    from kl_companion.monitor.run_folder import read_run as read_run
    from kl_companion.monitor.verdicts import RunVerdict as RunVerdict

_NAMES: dict[str, str] = {
    "run_verdicts": "kl_companion.monitor.advice",
    "report_html": "kl_companion.monitor.report",
    "MonitoredRun": "kl_companion.monitor.run_folder",
    "RunRow": "kl_companion.monitor.run_folder",
    "RunToken": "kl_companion.monitor.run_folder",
    "read_run": "kl_companion.monitor.run_folder",
    "RunVerdict": "kl_companion.monitor.verdicts",
}
__getattr__, __all__, __dir__ = lazy(__name__, _NAMES)
