"""A monitored run as one HTML page that needs nothing else: verdicts, curves, tokens, numbers, settings.

Everything that comes from the run, words of its tokens included, is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

from kl_companion.monitor.report.advice import headline, run_verdicts, worst
from kl_companion.monitor.report.curves import drawn_curves
from kl_companion.monitor.report.page_tables import all_rows, as_text, numbers, settings, tokens
from kl_companion.monitor.report.run_folder import MonitoredRun
from kl_companion.monitor.report.verdicts import RunVerdict, between, finite, number

STYLE = "\n" + (files("kl_companion.monitor.report") / "style.css").read_text("utf-8")
LEVEL_WORDS = {"wrong": "✕ Wrong", "attention": "! Needs attention", "fine": "✓ Fine"}


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
        f"<title>KL report: {as_text(title)}</title><style>{STYLE}</style></head><body>\n"
        f"<header><p>KL report</p><h1>{as_text(title)}</h1><p>{_subtitle(run)}</p></header>\n<main>"
        f"{_headline(run, verdicts)}\n{_tiles(run)}\n"
        f"<h2>What was found</h2>{_cards(verdicts)}\n{figures}\n{tokens(run)}\n"
        f"<h2>The numbers and what they mean</h2>{numbers(run)}\n"
        f"<h2>Settings of the run</h2>{settings(run)}\n{all_rows(run)}</main>\n"
        f"<footer>Written by kl-companion {__version__}. The page loads nothing from elsewhere.</footer>"
        "</body></html>\n"
    )


def _subtitle(run: MonitoredRun) -> str:
    first, last = run.observations[0], run.last
    when = f"step {last.step:,}" if first.step == last.step else f"steps {first.step:,} to {last.step:,}"
    count = len(run.observations)
    parts = [f"{count} observation{'s' if count > 1 else ''}", when, f"{last.answers:,} answers each time"]
    trainer = run.settings.get("trainer")
    return " · ".join([*([as_text(trainer)] if trainer else []), *parts])


def _headline(run: MonitoredRun, verdicts: Sequence[RunVerdict]) -> str:
    level = worst(tuple(verdicts))
    counts = {name: sum(v.level == name for v in verdicts) for name in LEVEL_WORDS}
    said = [f"{counts['wrong']} wrong", f"{counts['attention']} to attend to", f"{counts['fine']} fine"]
    note = ", ".join(text for text in said if not text.startswith("0 ")) + "."
    if run.cut:
        note += " A last line was cut in half and left out: the run was still writing, or was stopped."
    return (
        f'<section class="headline {level}"><h2>{LEVEL_WORDS[level]}</h2>'
        f'<p class="lead">{as_text(headline(run, tuple(verdicts)))}</p><p class="note">{note}</p></section>'
    )


def _tiles(run: MonitoredRun) -> str:
    """The last observation at a glance."""
    row, beta = run.last, run.settings.get("beta")
    beside = "" if row.logged is None or row.kl is None else _beside(row.logged - row.kl)
    tiles = (
        ("kl", "KL, nats per token", between(row.kl_low, row.kl_high)),
        ("kl_of_answers", "KL, nats per answer", ""),
        ("logged", "Logged", beside),
        ("effective_beta", "Effective β", "" if beta is None else f"set to {number(beta)}"),
        ("entropy", "Entropy, nats", _began(run, "entropy")),
        ("reward", "Reward", _began(run, "reward")),
    )
    cells = (
        f"<div><dt>{name}</dt><dd>{number(x)}{f'<small>{note}</small>' if note else ''}</dd></div>"
        for column, name, note in tiles
        if (x := getattr(row, column)) is not None
    )
    return f'<dl class="tiles" aria-label="The last observation, step {row.step}">{"".join(cells)}</dl>'


def _began(run: MonitoredRun, name: str) -> str:
    known = finite(run.series(name))
    return f"{number(known[0])} at first" if len(known) > 1 else ""


def _beside(difference: float) -> str:
    return f"{number(abs(difference))} {'above' if difference >= 0 else 'below'} the exact"


def _cards(verdicts: Iterable[RunVerdict]) -> str:
    cards = []
    for verdict in verdicts:
        todo = f"<strong>What to do:</strong> {as_text(verdict.todo)}" if verdict.todo else ""
        todo = todo and f'<p class="todo">{todo}</p>'
        cards.append(
            f'<li class="{verdict.level}"><p class="level">{LEVEL_WORDS[verdict.level]}</p>'
            f'<h3>{as_text(verdict.says)}</h3><p class="why">{as_text(verdict.why)}</p>{todo}</li>'
        )
    return f'<ul class="verdicts">{"".join(cards)}</ul>'
