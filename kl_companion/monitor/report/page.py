"""The report of a log as one HTML page that needs nothing else: findings, curves, tokens, numbers, settings.

Everything that comes from the run, words of its tokens included, is escaped by the template.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kl_companion.monitor.largest_tokens import LargeToken
from kl_companion.monitor.logs.beta import beta_of
from kl_companion.monitor.logs.comparison import comparison_notes, comparison_rows
from kl_companion.monitor.logs.conclusions import LogReport, log_report
from kl_companion.monitor.logs.descriptions import describe
from kl_companion.monitor.logs.quantities import Quantities
from kl_companion.monitor.logs.run_folder import MonitoredRun, run_log
from kl_companion.monitor.logs.units import amount_of
from kl_companion.monitor.logs.words import between, finite, number, percent, probability, two_digits, visible
from kl_companion.monitor.report.column_words import WORDS
from kl_companion.monitor.report.curves import compared_curves, drawn_curves

LEVEL_WORDS = {"wrong": "✕ Wrong", "attention": "! Needs attention", "fine": "✓ Fine"}
MOST_TOKENS = 8
MOST_ROWS = 200  # of the table of all rows; the file has the rest
_BEFORE, _TOKEN = 90, 24  # characters of a text that are shown
_PLACE = files("kl_companion.monitor.report")
Context = dict[str, Any]


def report_html(run: MonitoredRun, *, name: str = "") -> str:
    """Return the page of a monitored run.

    Args:
        run: From `kl_companion.monitor.read_run`.
        name: What the run is called where it does not name its model, such as its folder.

    Returns:
        One HTML document in which no address of anything else stands.
    """
    return log_html(log_report(run_log(run)), name=name)


def log_html(report: LogReport, *, name: str = "") -> str:
    """Return the page of a log, from its report and a name for the title."""
    q = report.quantities
    levels = [verdict.level for verdict in report.verdicts]
    words = {"wrong": "wrong", "attention": "to attend to", "fine": "fine"}
    counts = [f"{levels.count(x)} {text}" for x, text in words.items() if x in levels]
    return _page(
        title=str(q.log.config.get("model") or name or "a log"),
        subtitle=_subtitle(q),
        level=report.level,
        headline=report.sentence,
        note=" ".join([f"{', '.join(counts) or 'Nothing was found'}.", *q.log.notes]),
        step=f"{q.log.steps[-1]:g}",
        tiles=list(_tiles(q)),
        findings=[("What was found", report.verdicts)] if report.verdicts else [],
        open=report.open,
        figures=drawn_curves(q),
        tokens=list(_token_tables(q)),
        numbers=_numbers(q),
        settings=[(key, _setting(x)) for key, x in q.log.config.items() if key != "format"],
        table=_table(q),
    )


def comparison_html(a: LogReport, b: LogReport, names: tuple[str, str]) -> str:
    """Return the page of two logs side by side: their numbers, the KL per answer in one figure, findings."""
    comparison = {
        "caption": "First value to last value, each a mean over some rows.",
        "names": names,
        "rows": comparison_rows(a, b),
        "notes": comparison_notes(a.quantities, b.quantities),
    }
    findings = [
        (f"What was found in {name}", [v for v in report.verdicts if v.level != "fine"])
        for name, report in zip(names, (a, b), strict=True)
    ]
    return _page(
        title=" and ".join(names),
        subtitle="Two logs side by side",
        comparison=comparison,
        figures=compared_curves((a.quantities, b.quantities), names),
        findings=[(title, verdicts) for title, verdicts in findings if verdicts],
    )


def _page(**context: Any) -> str:
    from kl_companion import __version__

    names = ("comparison", "headline", "tiles", "open", "tokens", "numbers", "settings", "table")
    style = Markup((_PLACE / "style.css").read_text("utf-8"))
    known = {**dict.fromkeys(names), "levels": LEVEL_WORDS, "style": style, "version": __version__}
    return _template().render({**known, **context}) + "\n"


@cache
def _template() -> Any:
    """Return the template; texts are escaped, with what cannot be seen as signs or codes."""

    def shown(x: Any) -> Any:
        return visible(x) if isinstance(x, str) and not isinstance(x, Markup) else x

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=shown)
    return environment.from_string((_PLACE / "page.html").read_text("utf-8"))


def _subtitle(q: Quantities) -> str:
    steps, rows = q.log.steps, len(q.log.steps)
    when = f"step {steps[0]:,.0f}" if rows == 1 else f"steps {steps[0]:,.0f} to {steps[-1]:,.0f}"
    source = q.log.config.get("trainer") if q.log.recorded else q.release.text
    parts = [str(source)] if source else []
    parts += [q.log.form, f"{rows} row{'s' if rows > 1 else ''}", when]
    parts += [f"{q.answers:,.0f} answers each time"] if q.log.recorded and q.answers else []
    return " · ".join(parts)


def _tiles(q: Quantities) -> Iterator[tuple[str, str, str]]:
    """Yield the last row at a glance: name, value, and a note."""
    kl, amount, beta, acts = q.reference, amount_of(q), beta_of(q).value, q.recorded("effective_beta")
    if kl is not None:
        span = between(*_ends(q, kl.key))
        yield from _tile(f"{kl.key}, nats per token" if kl.average != "sum" else kl.key, kl.series, span)
    if amount is not None:
        yield "KL, nats per answer", number(amount.last), f"{number(amount.first)} at first"
    if q.logged is not None and kl is not None:
        off = q.logged.series[-1] - kl.series[-1]
        beside = (
            f"{number(abs(off))} {'above' if off >= 0 else 'below'} the exact" if math.isfinite(off) else ""
        )
        yield from _tile("Logged", q.logged.series, beside)
    yield from _tile("Effective β", acts, "" if beta is None else f"set to {number(beta)}")
    if not acts and beta is not None:
        yield "β", number(beta), ""
    for name in ("entropy", "reward", "length"):
        series = q.series(name)
        yield from _tile(
            name.capitalize(), series, f"{number(finite(series)[0])} at first" if finite(series) else ""
        )


def _tile(name: str, series: Any, note: str) -> Iterator[tuple[str, str, str]]:
    if series and finite(series[-1:]):
        yield name, number(series[-1]), note


def _ends(q: Quantities, key: str) -> list[float | None]:
    """Return the ends of the interval of the last value of a column; None for one that is not known."""
    ends = (finite(q.recorded(f"{key}_{end}")[-1:]) for end in ("low", "high"))
    return [next(iter(x), None) for x in ends]


def _token_tables(q: Quantities) -> Iterator[tuple[str, list[Context]]]:
    """Yield the tokens of the last row, and those of the whole run where these are others."""
    by_step = q.log.recorded.tokens if q.log.recorded else {}
    every = [(step, token) for step, tokens in by_step.items() for token in tokens]
    if not every:
        return
    last = max(by_step)
    if by_step[last]:
        rows = [_token(x) for x in by_step[last][:MOST_TOKENS]]
        yield f"Of the last observation, step {last}", rows
    most = sorted(every, key=lambda pair: -_size(pair[1]))[:MOST_TOKENS]
    if {step for step, _ in most} != {last}:
        yield "Of the whole run", [_token(x, f"step {step}, ") for step, x in most]


def _size(token: LargeToken) -> float:
    return math.inf if math.isnan(token.log_ratio) else abs(token.log_ratio)


def _token(token: LargeToken, step: str = "") -> Context:
    size = abs(token.log_ratio)
    times = f"{two_digits(math.exp(min(size, 700)))} × {'likelier' if token.log_ratio >= 0 else 'rarer'}"
    return {
        "before": visible(token.before)[-_BEFORE:],
        "token": visible(token.token)[:_TOKEN],
        "where": f"{step}answer {token.answer}, token {token.position}",
        "times": times if math.isfinite(size) else number(token.log_ratio),
        "probabilities": f"{probability(token.logp)} to {probability(token.ref_logp)}",
    }


def _numbers(q: Quantities) -> Context:
    """Return every column that has a meaning here, with its first and its last values."""
    if q.log.recorded:
        known = {key: (words.name, words.meaning) for key, words in WORDS.items() if q.recorded(key)}
        absent = ", ".join(words.name for key, words in WORDS.items() if not q.recorded(key))
    else:
        known = {kl.key: ("", describe(kl)) for kl in q.kls}
        known |= {key: (name.replace("_", " "), "") for name, key in q.keys.items() if key not in known}
        absent = ""
    rows = []
    for key, (name, meaning) in known.items():
        series = q.log.columns[key]
        share = key in WORDS and WORDS[key].share
        texts = [
            "–" if x is None else percent(x) if share else number(x)
            for x in (q.early(series), q.late(series), next(iter(finite(series[-1:])), None))
        ]
        cells = dict(zip(("early", "late", "last"), texts, strict=True))
        rows.append({"key": key, "name": name, "meaning": meaning, "span": between(*_ends(q, key)), **cells})
    first, last = q.window(50), q.window(5)
    caption = f"Means of the first {first} and of the last {last} rows, and the last row."
    return {"caption": caption, "rows": rows, "absent": absent} if rows else {}


def _setting(value: Any) -> str:
    if value is None:
        return "not known, or none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _table(q: Quantities) -> Context:
    """Return all rows, for readers who do not see the curves, and for a look at one step."""
    rows = len(q.log.steps)
    places = range(max(0, rows - MOST_ROWS), rows)
    cells = [["–" if math.isnan(x[i]) else number(x[i]) for x in q.log.columns.values()] for i in places]
    steps = [f"{q.log.steps[i]:g}" for i in places]
    cut = f", the last {MOST_ROWS}" if rows > MOST_ROWS else ""
    names = list(itertools.chain(["step"], q.log.columns))
    caption = f"One row per observation{cut}; names as in the log."
    return {"caption": caption, "names": names, "rows": list(zip(steps, cells, strict=True))}
