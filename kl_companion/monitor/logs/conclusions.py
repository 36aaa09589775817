"""The report of a log: what its numbers are, what is wrong, and what would decide the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from kl_companion.auditing.judgment.card import CardBlock, CardLine, wrapped
from kl_companion.monitor.logs import exact_tests, shape, states, units
from kl_companion.monitor.logs.beta import beta_of
from kl_companion.monitor.logs.descriptions import describe, key_data, metric_lines
from kl_companion.monitor.logs.keys import RECORDED, name_release
from kl_companion.monitor.logs.open_questions import open_questions
from kl_companion.monitor.logs.quantities import LogOptions, Quantities, quantities
from kl_companion.monitor.logs.reading import read_log
from kl_companion.monitor.logs.rows import Log
from kl_companion.monitor.logs.sentences import LEVELS, Level, RunVerdict
from kl_companion.monitor.logs.units import amount_of, paid, sigma_of
from kl_companion.monitor.logs.words import number

Check = Callable[[Quantities], Iterator[RunVerdict]]
_STYLES = {"wrong": "bold bad", "attention": "bold", "fine": ""}
_MARKS = {"wrong": "✕ ", "attention": "! ", "fine": "· "}
_HEADINGS = {"wrong": "Wrong", "attention": "Needs attention", "fine": "Also"}


class ReportParagraph(NamedTuple):
    """A text of the report, before its lines are broken.

    Attributes:
        text: Any length.
        first: In front of the first line.
        indent: In front of the other lines.
        most: Lines at most on a card.
        style: See `kl_companion.auditing.judgment.card.CardLine`.
    """

    text: str
    first: str = ""
    indent: str = ""
    most: int = 9
    style: str = ""

    def lines(self) -> list[CardLine]:
        """Return the text as lines of a card."""
        return wrapped(self.text, self.indent, self.first, self.most, self.style)


class LogReport(NamedTuple):
    """What follows from a log.

    Attributes:
        quantities: The numbers of the log by their meaning.
        verdicts: The findings, the gravest first.
        open: What the log does not decide, and what would.
    """

    quantities: Quantities
    verdicts: tuple[RunVerdict, ...]
    open: tuple[str, ...]

    @property
    def level(self) -> Level:
        """The gravest level of all findings."""
        levels = {verdict.level for verdict in self.verdicts}
        return next((level for level in LEVELS if level in levels), "fine")

    @property
    def met(self) -> bool | None:
        """Whether nothing is wrong; None where nothing is, and a log alone shows no more."""
        return False if self.level == "wrong" else None

    @property
    def sentence(self) -> str:
        """The first finding."""
        return self.verdicts[0].says if self.verdicts else "Nothing follows from this log about a KL."

    def fails(self, condition: str) -> bool:
        """Return whether a condition of ``--fail-on`` holds.

        Args:
            condition: "wrong", "attention" (or graver), or the topic of a finding.
        """
        if condition in LEVELS:
            return LEVELS.index(self.level) <= LEVELS.index(condition)
        return any(verdict.topic == condition for verdict in self.verdicts)

    def sections(self, *, details: bool = False) -> list[list[ReportParagraph]]:
        """Return the paragraphs of the report by section; with `details` what each finding means, too."""
        sections = [_head(self.quantities), _numbers(self.quantities)]
        for level in LEVELS:
            verdicts = [x for x in self.verdicts if x.level == level]
            if verdicts:
                heading = ReportParagraph(_HEADINGS[level], style=_STYLES[level])
                texts = chain.from_iterable(_paragraphs(x, details or level != "fine") for x in verdicts)
                sections.append([heading, *texts])
        if self.open:
            heading = ReportParagraph("What would decide what is open", style="bold")
            sections.append([heading, *(ReportParagraph(x, "  ? ", "    ") for x in self.open)])
        return sections

    def blocks(self, *, details: bool = False) -> list[CardBlock]:
        """Return the report as blocks of a card; with `details` what each finding means, too."""
        sections = self.sections(details=details)
        return [CardBlock([line for x in section for line in x.lines()]) for section in sections]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, without NaN."""
        q = self.quantities
        beta, amount = beta_of(q), amount_of(q)
        return {
            "report": "log",
            "form": q.log.form,
            "rows": len(q.log.steps),
            "first_step": q.log.steps[0],
            "last_step": q.log.steps[-1],
            "notes": list(q.log.notes),
            "framework": q.release.framework,
            "releases": q.release.text,
            "level": self.level,
            "headline": self.sentence,
            "keys": [key_data(kl) for kl in q.kls],
            "beta": {"value": beta.value, "source": beta.source, "low": beta.low, "high": beta.high},
            "nats_per_answer": None if amount is None else amount._asdict(),
            "sigma": (sigma_of(q) or (None,))[0],
            "verdicts": [verdict._asdict() for verdict in self.verdicts],
            "open": list(self.open),
        }


def log_report(path: str | Path | Log, options: LogOptions | None = None) -> LogReport:
    """Return what follows from a log.

    Args:
        path: A file, a folder, "-" for standard input, or a log that was read.
        options: What the log does not say: framework, release, beta, ...

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is no log, or an option has a value that is not known.
    """
    log = path if isinstance(path, Log) else read_log(path)
    known = options or LogOptions()
    framework = known.framework or (RECORDED if log.recorded else "")
    q = quantities(log, name_release(log.columns, framework, known.release), known)
    every = chain.from_iterable(check(q) for check in _checks(q))
    verdicts = sorted(every, key=lambda verdict: LEVELS.index(verdict.level))
    return LogReport(q, tuple(verdicts), tuple(open_questions(q)))


def _checks(q: Quantities) -> tuple[Check, ...]:
    """Return the checks of a log; those of the columns that the monitor adds need torch."""
    first, rest = (*exact_tests.CHECKS, *units.CHECKS), (*shape.CHECKS, *states.CHECKS)
    if not q.is_recorded:
        return (*first, *rest)
    from kl_companion.monitor.logs import logged_number, recorded, recorded_tokens

    return (
        recorded_tokens.impossible_tokens,
        *first,
        logged_number.verdict_on_the_number,
        *recorded.CHECKS,
        *rest,
    )


def _paragraphs(verdict: RunVerdict, why: bool) -> list[ReportParagraph]:
    """Return a finding, and with `why` its reason and what to do about it."""
    says = ReportParagraph(
        verdict.says, f"  {_MARKS[verdict.level]}", "    ", most=12, style=_STYLES[verdict.level]
    )
    reason = ReportParagraph(verdict.why, "    ", "    ", most=12)
    remedy = ReportParagraph(verdict.todo, "    -> ", "       ")
    return [says, *(x for x in (reason, remedy) if why and x.text)]


def _head(q: Quantities) -> list[ReportParagraph]:
    log, rows = q.log, len(q.log.steps)
    where = f"{rows} rows" if rows > 1 else "one row"
    name = "places" if log.counted else "steps"
    where += f", {name} {log.steps[0]:g} to {log.steps[-1]:g}" if rows > 1 else f", step {log.steps[0]:g}"
    counted = " (the log has no steps: they are counted)" if log.counted and rows > 1 else ""
    others = [x for x in q.release.others if any(m.framework == x for kl in q.kls for m in kl.metrics)]
    others = [] if q.release.chosen else others
    name = q.release.text + (f", or {' or '.join(others)}" if others else "")
    named = "as set" if q.release.chosen else "by its keys"
    return [
        ReportParagraph(f"{log.form}: {where}{counted}", style="bold"),
        ReportParagraph(f"{name}, {named}. {_capital(beta_of(q).text)}.", "  ", "  "),
        *(ReportParagraph(note, "  ", "  ", style="dim") for note in log.notes),
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text[:1] != "β" else text


def _numbers(q: Quantities) -> list[ReportParagraph]:
    if not q.kls:
        return []
    texts = [ReportParagraph("What the numbers are", style="bold")]
    for kl in q.kls[:12]:
        last = next((x for x in reversed(kl.series) if math.isfinite(x)), None)
        value = "no number" if last is None else f"{number(last)} in the last row"
        texts.append(ReportParagraph(f"{kl.key}: {describe(kl)}; {value}.", "  ", "    ", most=4))
    if len(q.kls) > 12:
        texts.append(ReportParagraph(f"and {len(q.kls) - 12} more (--json)", "  "))
    return texts


__all__ = ["LogOptions", "LogReport", "describe", "log_report", "metric_lines", "paid"]
