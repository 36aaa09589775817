"""The tables of a report: tokens that stand out, numbers with their meaning, settings, all rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import Any

from kl_companion.monitor.largest_tokens import LargeToken
from kl_companion.monitor.observation import COLUMNS
from kl_companion.monitor.report.column_words import WORDS
from kl_companion.monitor.report.run_folder import MonitoredRun
from kl_companion.monitor.report.verdicts import (
    RECENT,
    between,
    number,
    percent,
    probability,
    recent,
    two_digits,
    visible,
)

MOST_TOKENS = 8
_BEFORE, _TOKEN = 90, 24  # characters that are shown
MOST_ROWS = 200  # of the table of all observations; the file has the rest
SETTING_WORDS = {
    "trainer": "Trainer",
    "model": "Model",
    "estimator": "Estimator that the trainer logs",
    "clamp": "Clamp of the log-ratio",
    "beta": "β",
    "rewards_divided": "Rewards are divided by",
    "temperature": "Temperature",
    "top_p": "Top-p",
    "top_k": "Top-k",
    "every": "Steps between observations",
    "rows": "Answers that are read at most",
    "vocabulary": "Tokens of the vocabulary",
}


def as_text(given: object) -> str:
    """Something that the run said, as text of the page and nothing else."""
    return escape(visible(str(given)))


def _table(caption: str, head: Iterable[tuple[str, str]], rows: Iterable[str], kind: str = "") -> str:
    """A table from its caption, the names of its columns with their classes, and rows as HTML."""
    names = "".join(f'<th scope="col"{_class(classes)}>{name}</th>' for name, classes in head)
    return (
        f"<table{_class(kind)}><caption>{caption}</caption><thead><tr>{names}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def tokens(run: MonitoredRun) -> str:
    """The tokens of the last observation, and those of the whole run where these are others."""
    every = [(step, token) for step, tokens in run.tokens.items() for token in tokens]
    if not every:
        return ""
    step = max(run.tokens)
    now = [(step, token) for token in run.tokens[step][:MOST_TOKENS]]
    most = sorted(every, key=lambda pair: -_size(pair[1]))[:MOST_TOKENS]
    tables = [_token_table(f"Of the last observation, step {step}", now, steps=False)] if now else []
    if {pair[0] for pair in most} != {step}:
        tables.append(_token_table("Of the whole run", most, steps=True))
    lead = (
        "<p>Where policy and reference differ most on a token that was sampled. One such token can make most "
        "of what a trainer logs; the same token again and again is worth a look at the data.</p>"
    )
    return f'<h2>Tokens with the largest log-ratios</h2>{lead}<div class="two">{"".join(tables)}</div>'


def _size(token: LargeToken) -> float:
    return math.inf if math.isnan(token.log_ratio) else abs(token.log_ratio)


def _token_table(caption: str, tokens: Iterable[tuple[int, LargeToken]], *, steps: bool) -> str:
    rows = []
    for step, token in tokens:
        before, shown = visible(token.before)[-_BEFORE:], visible(token.token)[:_TOKEN]
        where = f"answer {token.answer}, token {token.position}"
        rows.append(
            f'<tr><td class="text"><bdi><span>{escape(before)}</span><mark>{escape(shown)}</mark></bdi>'
            f"<small>{f'step {step}, ' if steps else ''}{where}</small></td>"
            f'<td class="n">{_times(token.log_ratio)}'
            f"<small>{probability(token.logp)} to {probability(token.ref_logp)}</small></td></tr>"
        )
    caption += ". The sampled token is marked, after the text before it; its probability under the policy is "
    caption += "compared with that under the reference."
    return _table(caption, (("Text", ""), ("Policy to reference", "n")), rows)


def _times(log_ratio: float) -> str:
    """A log-ratio in words."""
    if not math.isfinite(log_ratio):
        return number(log_ratio)
    return f"{two_digits(math.exp(min(abs(log_ratio), 700)))} × {'likelier' if log_ratio >= 0 else 'rarer'}"


def numbers(run: MonitoredRun) -> str:
    """Every column that is known, with its meaning, its first and its last value."""
    rows = []
    for name, words in WORDS.items():
        series = run.series(name)
        if all(x is None for x in series):
            continue
        span = between(*(getattr(run.last, f"{name}_{end}", None) for end in ("low", "high")))
        last = _cell(name, series[-1]) + (f"<small>{span}</small>" if span else "")
        first = next(x for x in series if x is not None)
        rows.append(
            f'<tr><th scope="row"><b>{words.name}</b> <code>{name}</code><small>{words.meaning}</small></th>'
            f'<td class="n middle">{_cell(name, first)}</td>'
            f'<td class="n middle">{_cell(name, recent(run, name))}</td><td class="n">{last}</td></tr>'
        )
    absent = [words.name for name, words in WORDS.items() if all(x is None for x in run.series(name))]
    unknown = f"<p>Not known in this run: {', '.join(absent)}.</p>" if absent else ""
    over = min(RECENT, len(run.observations))
    caption = f"Columns of <code>kl_monitor.csv</code>; the last value is that of step {run.last.step}."
    head = (("Number", ""), ("First", "n middle"), (f"Mean of {over}", "n middle"), ("Last", "n"))
    return _table(caption, head, rows) + unknown


def _cell(name: str, x: float | None) -> str:
    if x is None:
        return "–"
    return percent(x) if WORDS[name].share else number(x)


def settings(run: MonitoredRun) -> str:
    """What the run says of itself."""
    rows = []
    for name, value in run.settings.items():
        if name != "format":
            words = SETTING_WORDS.get(name, name)
            rows.append(f'<tr><th scope="row">{as_text(words)}</th><td>{_setting(value)}</td></tr>')
    caption = "What the run says of itself in <code>kl_monitor.json</code>."
    return _table(caption, (("Setting", ""), ("Value", "")), rows)


def _setting(value: Any) -> str:
    if value is None:
        return "not known, or none"
    if isinstance(value, list):
        return f"[{', '.join(as_text(x) for x in value)}]"
    return as_text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value)


def all_rows(run: MonitoredRun) -> str:
    """All rows, for readers who do not see the curves, and for a look at one step."""
    known = [n for n in COLUMNS if any(x is not None for x in run.series(n))]
    rows = []
    for row in run.observations[-MOST_ROWS:]:
        cells = "".join(f"<td>{'–' if (x := getattr(row, n)) is None else number(x)}</td>" for n in known[1:])
        rows.append(f'<tr><th scope="row">{row.step}</th>{cells}</tr>')
    cut = f", the last {MOST_ROWS}" if len(run.observations) > MOST_ROWS else ""
    caption = f"One row per observation{cut}; names as in <code>kl_monitor.csv</code>."
    return (
        "<h2>All observations</h2><details><summary>Show the table</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="All observations">'
        f"{_table(caption, [(name, '') for name in known], rows, 'every')}</div></details>"
    )
