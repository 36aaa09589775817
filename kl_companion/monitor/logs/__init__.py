"""A log that already exists: its rows read by content, its numbers named, and what follows from them."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.monitor.logs.conclusions import LogOptions as LogOptions
    from kl_companion.monitor.logs.conclusions import LogReport as LogReport
    from kl_companion.monitor.logs.conclusions import log_report as log_report
    from kl_companion.monitor.logs.reading import read_log as read_log
    from kl_companion.monitor.logs.rows import Log as Log
    from kl_companion.monitor.logs.run_folder import MonitoredRun as MonitoredRun
    from kl_companion.monitor.logs.run_folder import read_run as read_run
    from kl_companion.monitor.logs.sentences import RunVerdict as RunVerdict

__getattr__, __all__, __dir__ = lazy(__name__)
