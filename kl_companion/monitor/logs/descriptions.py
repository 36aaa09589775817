"""Numbers of a log in words: estimator, pair, average, factor, clamp, and what to know of a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kl_companion.monitor.logs.keys import AVERAGES, METRICS, Metric
from kl_companion.monitor.logs.quantities import KlNumber
from kl_companion.monitor.logs.words import finite


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
    name = {"": "a number", "exact": "exact KL"}.get(estimator.lstrip("-"), estimator.lstrip("-"))
    name += f" by default ({m.setting} decides)" if estimator and m.setting and not kl.certain else ""
    return f"{sign}{name} of {m.pair}"


def _description(m: Metric, kl: KlNumber) -> str:
    parts = [_head_words(m, kl), AVERAGES[m.average]]
    parts += [f"times {m.factor.replace('beta', 'β')}"] if m.factor else []
    parts += [f"clamped ({m.clamp})"] if m.clamp else []
    return ", ".join(x for x in parts if x) + (f" ({m.note})" if m.note else "")


def key_data(kl: KlNumber) -> dict[str, Any]:
    """Return a KL of a log as plain data: what it is, and its first and last value."""
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
