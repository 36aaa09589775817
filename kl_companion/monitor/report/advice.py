"""The findings on a monitored run: those of the report of its log."""

from __future__ import annotations

from kl_companion.monitor.logs.conclusions import log_report
from kl_companion.monitor.logs.run_folder import MonitoredRun, run_log
from kl_companion.monitor.logs.sentences import LEVELS, Level, RunVerdict


def run_verdicts(run: MonitoredRun) -> tuple[RunVerdict, ...]:
    """Return the findings on a run, the gravest first.

    Args:
        run: From `kl_companion.monitor.read_run`.

    Returns:
        Those of level ``"fine"`` come last, and a run without troubles has no others.
    """
    return log_report(run_log(run)).verdicts


def worst(verdicts: tuple[RunVerdict, ...]) -> Level:
    """Return the gravest level of some findings; "fine" without any."""
    return min((verdict.level for verdict in verdicts), key=LEVELS.index, default="fine")


def headline(run: MonitoredRun, verdicts: tuple[RunVerdict, ...]) -> str:
    """Return one sentence for the whole run: its gravest finding."""
    return log_report(run_log(run))._replace(verdicts=verdicts).sentence
