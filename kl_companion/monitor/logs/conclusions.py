"""The report of a log: what its numbers are, what is wrong, and what would decide the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from kl_companion.auditing.judgment.card import CardBlock, CardLine, wrapped
from kl_companion.monitor.logs import exact_tests, shape, states, units
from kl_companion.monitor.logs.beta import beta_of
from kl_companion.monitor.logs.keys import AVERAGES, METRICS, Metric, name_release
from kl_companion.monitor.logs.open_questions import open_questions
from kl_companion.monitor.logs.quantities import KlNumber, LogOptions, Quantities, quantities
from kl_companion.monitor.logs.reading import read_log
from kl_companion.monitor.logs.rows import Log
from kl_companion.monitor.logs.units import amount_of, paid, sigma_of
from kl_companion.monitor.report.verdicts import LEVELS, Level, RunVerdict, finite, number

CHECKS = (*exact_tests.CHECKS, *units.CHECKS, *shape.CHECKS, *states.CHECKS)
_STYLES = {"wrong": "bold bad", "attention": "bold", "fine": ""}
_MARKS = {"wrong": "✕ ", "attention": "! ", "fine": "· "}
_HEADINGS = {"wrong": "Wrong", "attention": "Needs attention", "fine": "Also"}


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

    def blocks(self, *, details: bool = False) -> list[CardBlock]:
        """Return the report as blocks of a card; with `details` what each finding means, too."""
        blocks = [CardBlock(_head(self.quantities)), CardBlock(_numbers(self.quantities))]
        for level in LEVELS:
            verdicts = [x for x in self.verdicts if x.level == level]
            if verdicts:
                lines = [CardLine(_HEADINGS[level], _STYLES[level])]
                lines += chain.from_iterable(_lines(x, details or level != "fine") for x in verdicts)
                blocks.append(CardBlock(lines))
        if self.open:
            lines = [CardLine("What would decide what is open", "bold")]
            blocks.append(CardBlock(lines + [y for x in self.open for y in wrapped(x, "    ", "  ? ")]))
        return blocks

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
            "keys": [_key_data(kl) for kl in q.kls],
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
    release = name_release(log.columns, known.framework, known.release)
    q = quantities(log, release, known)
    every = chain.from_iterable(check(q) for check in CHECKS)
    verdicts = sorted(every, key=lambda verdict: LEVELS.index(verdict.level))
    return LogReport(q, tuple(verdicts), tuple(open_questions(q)))


def _lines(verdict: RunVerdict, why: bool) -> list[CardLine]:
    lines = wrapped(verdict.says, "    ", f"  {_MARKS[verdict.level]}", 12, _STYLES[verdict.level])
    if why:
        lines += wrapped(verdict.why, "    ", most=12)
        lines += wrapped(verdict.todo, "       ", "    -> ")
    return lines


def _head(q: Quantities) -> list[CardLine]:
    log, rows = q.log, len(q.log.steps)
    where = f"{rows} rows" if rows > 1 else "one row"
    name = "places" if log.counted else "steps"
    where += f", {name} {log.steps[0]:g} to {log.steps[-1]:g}" if rows > 1 else f", step {log.steps[0]:g}"
    counted = " (the log has no steps: they are counted)" if log.counted and rows > 1 else ""
    lines = [*wrapped(f"{log.form}: {where}{counted}", style="bold")]
    others = [x for x in q.release.others if any(m.framework == x for kl in q.kls for m in kl.metrics)]
    others = [] if q.release.chosen else others
    name = q.release.text + (f", or {' or '.join(others)}" if others else "")
    named = "as set" if q.release.chosen else "by its keys"
    lines += wrapped(f"{name}, {named}. {_capital(beta_of(q).text)}.", "  ")
    for note in log.notes:
        lines += wrapped(note, "  ", style="dim")
    return lines


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text[:1] != "β" else text


def _numbers(q: Quantities) -> list[CardLine]:
    if not q.kls:
        return []
    lines = [CardLine("What the numbers are", "bold")]
    for kl in q.kls[:12]:
        last = next((x for x in reversed(kl.series) if math.isfinite(x)), None)
        value = "no number" if last is None else f"{number(last)} in the last row"
        lines += wrapped(f"{kl.key}: {describe(kl)}; {value}.", "    ", "  ", 4)
    if len(q.kls) > 12:
        lines.append(CardLine(f"  and {len(q.kls) - 12} more (--json)"))
    return lines


def describe(kl: KlNumber) -> str:
    """Return what a KL of a log is, in words: estimator, pair, average, factor, clamp, and what to know."""
    if not kl.metrics:
        return "a key of no framework that is known here; estimator, pair, average and factor are open"
    texts = list(dict.fromkeys(_description(m, kl) for m in kl.metrics))
    if len(texts) == 1:
        return texts[0]
    heads = dict.fromkeys(_head_words(m, kl) for m in kl.metrics)
    parts = []
    for head in heads:
        rows = [m for m in kl.metrics if _head_words(m, kl) == head]
        averages = dict.fromkeys(AVERAGES[m.average] for m in rows)
        name = "" if len(heads) == 1 else f" ({rows[0].framework})"
        parts.append(f"{head}{name}, {' or '.join(x for x in averages if x)}")
    return "; or ".join(parts)


def _head_words(m: Metric, kl: KlNumber) -> str:
    sign = {"-": "minus "}.get(m.estimator[:1], "")
    estimator = kl.estimator if m is kl.metrics[0] or (kl.certain and m.setting) else m.estimator
    name = (estimator.lstrip("-") or "a number") + (
        f" by default ({m.setting} decides)" if m.setting and not kl.certain else ""
    )
    return f"{sign}{name} of {m.pair}"


def _description(m: Metric, kl: KlNumber) -> str:
    parts = [_head_words(m, kl), AVERAGES[m.average]]
    parts += [f"times {m.factor.replace('beta', 'β')}"] if m.factor else []
    parts += [f"clamped ({m.clamp})"] if m.clamp else []
    return ", ".join(x for x in parts if x) + (f" ({m.note})" if m.note else "")


def _key_data(kl: KlNumber) -> dict[str, Any]:
    values = finite(kl.series)
    return {
        "key": kl.key,
        "is": describe(kl),
        "estimator": kl.estimator,
        "certain": kl.certain,
        "pair": kl.pair,
        "average": kl.average,
        "factor": kl.metrics[0].factor if kl.metrics else "",
        "to_reference": kl.to_reference,
        "first": values[0] if values else None,
        "last": values[-1] if values else None,
    }


def metric_lines(patterns: Iterable[str] = ()) -> list[str]:
    """Return the keys that are known, a line each: framework, releases, key, and what it is."""
    words = [x.lower() for x in patterns]
    lines = []
    for m in METRICS:
        what = ", ".join(x for x in (m.estimator, m.pair, AVERAGES[m.average], m.factor, m.note) if x)
        text = f"{m.framework} {m.releases or '(all)'}  {m.name}: {what or m.kind}"
        if all(word in text.lower() for word in words):
            lines.append(text)
    return lines


__all__ = ["LogOptions", "LogReport", "describe", "log_report", "metric_lines", "paid"]
