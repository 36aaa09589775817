"""A monitored run as one HTML page that needs nothing else: verdicts, curves, tokens, numbers, settings.

Everything that comes from the run, words of its tokens included, is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from kl_companion.monitor.advice import headline, run_verdicts, worst
from kl_companion.monitor.column_words import WORDS
from kl_companion.monitor.report_curves import drawn_curves
from kl_companion.monitor.report_style import STYLE
from kl_companion.monitor.run_folder import MonitoredRun, RunToken
from kl_companion.monitor.verdicts import (
    RECENT,
    RunVerdict,
    finite,
    number,
    percent,
    probability,
    recent,
    visible,
)

LEVEL_WORDS = {"wrong": "✕ Wrong", "attention": "! Needs attention", "fine": "✓ Fine"}
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


def report_html(run: MonitoredRun, *, name: str = "") -> str:
    """The page.

    Args:
        run: From `kl_companion.monitor.read_run`.
        name: What the run is called where it does not name its model, such as its folder.

    Returns:
        One HTML document in which no address of anything else stands.
    """
    from kl_companion import __version__

    verdicts = run_verdicts(run)
    title = str(run.settings.get("model") or name or "a monitored run")
    curves = drawn_curves(run)
    figures = f'<h2>Curves</h2><div class="curves">{"".join(curves)}</div>' if curves else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>KL report: {_text(title)}</title><style>{STYLE}</style></head><body>\n"
        f"<header><p>KL report</p><h1>{_text(title)}</h1><p>{_subtitle(run)}</p></header>\n<main>"
        f"{_headline(run, verdicts)}\n{_tiles(run)}\n"
        f"<h2>What was found</h2>{_cards(verdicts)}\n{figures}\n{_tokens(run)}\n"
        f"<h2>The numbers and what they mean</h2>{_numbers(run)}\n"
        f"<h2>Settings of the run</h2>{_settings(run)}\n{_every(run)}</main>\n"
        f"<footer>Written by kl-companion {__version__}. The page loads nothing from elsewhere.</footer>"
        "</body></html>\n"
    )


def _text(given: object) -> str:
    return escape(visible(str(given)))


def _subtitle(run: MonitoredRun) -> str:
    first, last = run.observations[0], run.last
    when = f"step {last.step:,}" if first.step == last.step else f"steps {first.step:,} to {last.step:,}"
    count = len(run.observations)
    parts = [f"{count} observation{'s' if count > 1 else ''}", when, f"{last.answers:,} answers each time"]
    trainer = run.settings.get("trainer")
    return " · ".join([*([_text(trainer)] if trainer else []), *parts])


def _headline(run: MonitoredRun, verdicts: Sequence[RunVerdict]) -> str:
    level = worst(tuple(verdicts))
    counts = {name: sum(v.level == name for v in verdicts) for name in LEVEL_WORDS}
    said = [f"{counts['wrong']} wrong", f"{counts['attention']} to attend to", f"{counts['fine']} fine"]
    note = ", ".join(text for text in said if not text.startswith("0 ")) + "."
    if run.cut:
        note += " A last line was cut in half and left out: the run was still writing, or was stopped."
    return (
        f'<section class="headline {level}"><h2>{LEVEL_WORDS[level]}</h2>'
        f'<p class="lead">{_text(headline(run, tuple(verdicts)))}</p><p class="note">{note}</p></section>'
    )


def _tiles(run: MonitoredRun) -> str:
    """The last observation at a glance."""
    row, tiles = run.last, []
    if row.kl is not None:
        span = (
            ""
            if row.kl_low is None or row.kl_high is None
            else f"{number(row.kl_low)} to {number(row.kl_high)}"
        )
        tiles.append(("KL, nats per token", number(row.kl), span))
    if row.kl_of_answers is not None:
        tiles.append(("KL, nats per answer", number(row.kl_of_answers), ""))
    if row.logged is not None:
        off = "" if row.kl is None else f"{_signed(row.logged - row.kl)} to the exact KL"
        tiles.append(("Logged", number(row.logged), off))
    if row.effective_beta is not None:
        beta = run.settings.get("beta")
        tiles.append(
            ("Effective β", number(row.effective_beta), "" if beta is None else f"set to {number(beta)}")
        )
    if row.entropy is not None:
        tiles.append(("Entropy, nats", number(row.entropy), _began(run, "entropy")))
    if row.reward is not None:
        tiles.append(("Reward", number(row.reward), _began(run, "reward")))
    cells = (
        f"<div><dt>{name}</dt><dd>{value}{f'<small>{note}</small>' if note else ''}</dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles" aria-label="The last observation, step {row.step}">{"".join(cells)}</dl>'


def _began(run: MonitoredRun, name: str) -> str:
    known = finite(run.series(name))
    return f"{number(known[0])} at first" if len(known) > 1 else ""


def _signed(x: float) -> str:
    return f"+{number(x)}" if x > 0 else number(x)


def _cards(verdicts: Iterable[RunVerdict]) -> str:
    cards = []
    for verdict in verdicts:
        todo = (
            f'<p class="todo"><strong>What to do:</strong> {_text(verdict.todo)}</p>' if verdict.todo else ""
        )
        cards.append(
            f'<li class="{verdict.level}"><p class="level">{LEVEL_WORDS[verdict.level]}</p>'
            f'<h3>{_text(verdict.says)}</h3><p class="why">{_text(verdict.why)}</p>{todo}</li>'
        )
    return f'<ul class="verdicts">{"".join(cards)}</ul>'


def _tokens(run: MonitoredRun) -> str:
    """The tokens of the last observation, and those of the whole run where these are others."""
    every = [(step, token) for step, tokens in run.tokens.items() for token in tokens]
    if not every:
        return ""
    step = max(run.tokens)
    now = [(step, token) for token in run.tokens[step][:MOST_TOKENS]]
    most = sorted(every, key=lambda pair: -_size(pair[1]))[:MOST_TOKENS]
    tables = [_token_table(f"Of the last observation, step {step}", now, steps=False)]
    if {pair[0] for pair in most} != {step}:
        tables.append(_token_table("Of the whole run", most, steps=True))
    lead = (
        "<p>Where policy and reference differ most on a token that was sampled. One such token can make most "
        "of what a trainer logs; the same token again and again is worth a look at the "
        "data.</p>"
    )
    return f'<h2>Tokens with the largest log-ratios</h2>{lead}<div class="two">{"".join(tables)}</div>'


def _size(token: RunToken) -> float:
    return math.inf if math.isnan(token.log_ratio) else abs(token.log_ratio)


def _token_table(caption: str, tokens: Iterable[tuple[int, RunToken]], *, steps: bool) -> str:
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
    return (
        f"<table><caption>{caption}. The sampled token is marked, after the text before it; its probability "
        "under the policy is compared with that under the reference.</caption><thead><tr>"
        '<th scope="col">Text</th><th scope="col" class="n">Policy to reference</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _times(log_ratio: float) -> str:
    """A log-ratio in words."""
    if not math.isfinite(log_ratio):
        return number(log_ratio)
    size = number(float(f"{math.exp(min(abs(log_ratio), 700)):.2g}"))
    return f"{size} × {'likelier' if log_ratio >= 0 else 'rarer'}"


def _numbers(run: MonitoredRun) -> str:
    rows = []
    for name, words in WORDS.items():
        series = run.series(name)
        if all(x is None for x in series):
            continue
        low, high = (getattr(run.last, f"{name}_{end}", None) for end in ("low", "high"))
        last = _cell(name, series[-1])
        if low is not None and high is not None:
            last += f"<small>{number(low)} to {number(high)}</small>"
        first = next(x for x in series if x is not None)
        rows.append(
            f'<tr><th scope="row"><b>{words.name}</b> <code>{name}</code><small>{words.meaning}</small></th>'
            f'<td class="n middle">{_cell(name, first)}</td>'
            f'<td class="n">{_cell(name, recent(run, name))}</td><td class="n">{last}</td></tr>'
        )
    absent = [words.name for name, words in WORDS.items() if all(x is None for x in run.series(name))]
    unknown = f"<p>Not known in this run: {', '.join(absent)}.</p>" if absent else ""
    over = min(RECENT, len(run.observations))
    return (
        "<table><caption>Columns of <code>kl_monitor.csv</code>, with their first value, the mean of the "
        f"last {over} observations and the last value (step "
        f"{run.last.step}).</caption><thead><tr>"
        '<th scope="col">Number</th><th scope="col" class="n middle">First</th>'
        f'<th scope="col" class="n">Mean of {over}</th><th scope="col" class="n">Last</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>{unknown}"
    )


def _cell(name: str, x: float | None) -> str:
    if x is None:
        return "–"
    return percent(x) if WORDS[name].share else number(x)


def _settings(run: MonitoredRun) -> str:
    rows = []
    for name, value in run.settings.items():
        if name != "format":
            words = SETTING_WORDS.get(name, name)
            rows.append(f'<tr><th scope="row">{_text(words)}</th><td>{_setting(value)}</td></tr>')
    return (
        "<table><caption>What the run says of itself in <code>kl_monitor.json</code>.</caption><thead><tr>"
        f'<th scope="col">Setting</th><th scope="col">Value</th></tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _setting(value: Any) -> str:
    if value is None:
        return "not known, or none"
    if isinstance(value, list):
        return f"[{', '.join(_text(x) for x in value)}]"
    return _text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value)


def _every(run: MonitoredRun) -> str:
    """All rows, for readers who do not see the curves, and for a look at one step."""
    known = [n for n in run.last._fields if any(x is not None for x in run.series(n))]
    head = "".join(f'<th scope="col">{name}</th>' for name in known)
    rows = []
    for row in run.observations[-MOST_ROWS:]:
        cells = "".join(f"<td>{'–' if (x := getattr(row, n)) is None else number(x)}</td>" for n in known[1:])
        rows.append(f'<tr><th scope="row">{row.step}</th>{cells}</tr>')
    cut = len(run.observations) > MOST_ROWS
    return (
        "<h2>All observations</h2><details><summary>Show the table</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="All observations">'
        f'<table class="every"><caption>One row per observation{f", the last {MOST_ROWS}" if cut else ""}; names as in '
        f"<code>kl_monitor.csv</code>.</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        "</div></details>"
    )
