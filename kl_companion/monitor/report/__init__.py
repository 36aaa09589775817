"""A monitored run's report: its folder read, verdicts on it, and a page that shows both."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.monitor.report.advice import headline as headline
    from kl_companion.monitor.report.advice import run_verdicts as run_verdicts
    from kl_companion.monitor.report.advice import worst as worst
    from kl_companion.monitor.report.page import report_html as report_html

__getattr__, __all__, __dir__ = lazy(__name__)
