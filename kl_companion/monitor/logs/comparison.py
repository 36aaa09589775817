"""Two logs side by side, per answer: a KL per token depends on the length, the estimator and the average."""

from __future__ import annotations

import textwrap
from typing import Any

from kl_companion.auditing.judgment.card import WIDTH
from kl_companion.monitor.logs.beta import beta_of
from kl_companion.monitor.logs.conclusions import LogReport, describe
from kl_companion.monitor.logs.quantities import Quantities
from kl_companion.monitor.logs.units import amount_of, paid, price_and_gain
from kl_companion.monitor.logs.words import number

_NAME, _COLUMN = 24, 26  # columns of the terminal


def comparison_rows(a: LogReport, b: LogReport) -> list[tuple[str, str, str]]:
    """Return name and both values of every number that at least one of two logs has."""
    left, right = _facts(a), _facts(b)
    return [(name, left[name] or "–", right[name] or "–") for name in left if left[name] or right[name]]


def comparison_text(a: LogReport, b: LogReport, names: tuple[str, str]) -> str:
    """Return two logs side by side as text, with what cannot be compared."""
    lines = [_row("", *names)]
    for name, left, right in comparison_rows(a, b):
        lines.append(_row(name, left, right))
    for note in comparison_notes(a.quantities, b.quantities):
        lines += textwrap.wrap(note, WIDTH, initial_indent="! ", subsequent_indent="  ")
    return "\n".join(lines)


def comparison_data(a: LogReport, b: LogReport, names: tuple[str, str]) -> dict[str, Any]:
    """Return both reports and their comparison as plain data."""
    return {
        "report": "two logs",
        "names": list(names),
        "rows": [list(row) for row in comparison_rows(a, b)],
        "notes": comparison_notes(a.quantities, b.quantities),
        "logs": [a.to_dict(), b.to_dict()],
    }


def comparison_notes(a: Quantities, b: Quantities) -> list[str]:
    """Return sentences on what two logs do not have in common."""
    left, right = a.reference, b.reference
    if left is None or right is None:
        return ["One of the two has no KL to a reference: there is nothing to compare."]
    notes = []
    if not left.metrics or not right.metrics:
        notes.append("One of the two KLs is of an own key: what it is, its code says.")
    elif left.estimator != right.estimator:
        notes.append(
            f"{left.key} is {left.estimator} and {right.key} is {right.estimator}: they have the same "
            "expectation only for samples of the policy, and other noise."
        )
    if left.average != right.average or "" in (left.average, right.average):
        notes.append(
            "The averages differ or are open: values per token are not comparable, those per answer roughly."
        )
    return notes


def _row(name: str, left: str, right: str) -> str:
    cells = [
        textwrap.wrap(x, width - 1) or [""] for x, width in ((name, _NAME), (left, _COLUMN), (right, _COLUMN))
    ]
    height = max(len(x) for x in cells)
    rows = zip(*([*x, *[""] * (height - len(x))] for x in cells), strict=True)
    return "\n".join(f"{x:<{_NAME}}{y:<{_COLUMN}}{z}".rstrip() for x, y, z in rows)


def _facts(report: LogReport) -> dict[str, str]:
    q = report.quantities
    kl, amount, beta = q.reference, amount_of(q), beta_of(q)
    price = price_and_gain(q)
    cost = q.late(paid(q))
    return {
        "framework": q.release.text if q.release.framework else "unknown",
        "rows, steps": f"{len(q.log.steps)}, {q.log.steps[0]:g} to {q.log.steps[-1]:g}",
        "the KL": f"{kl.key}: {describe(kl).partition(' (')[0]}" if kl else "",
        "β": beta.text.removeprefix("β = ") if beta.value is not None else "not in the log",
        "nats per token": _span(q, kl.series) if kl else "",
        "nats per answer": f"{number(amount.first)} to {number(amount.last)}" if amount else "",
        "cost, of the reward": number(cost) if cost is not None else "",
        "price, σ": number(price.price) if price else "",
        "gain, σ": f"{number(price.gain)} ± {number(price.error)}" if price else "",
        "net, σ": number(price.gain - price.price) if price else "",
        "reward": _span(q, q.series("reward")),
        "mean length": _span(q, q.series("length")),
        "share cut": _span(q, q.series("clipped")),
        "entropy": _span(q, q.series("entropy")),
        "wrong": ", ".join(dict.fromkeys(x.topic for x in report.verdicts if x.level == "wrong")),
    }


def _span(q: Quantities, series: Any) -> str:
    first, last = q.early(series), q.late(series)
    return "" if first is None or last is None else f"{number(first)} to {number(last)}"
