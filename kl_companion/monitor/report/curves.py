"""Curves of a log, with what is to be seen in each."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from markupsafe import Markup

from kl_companion.monitor.logs.quantities import KlNumber, Quantities
from kl_companion.monitor.logs.units import nats_per_answer
from kl_companion.monitor.logs.words import finite, number
from kl_companion.monitor.report.drawing import Panel, RunCurve, panel_svg
from kl_companion.plotting import color

WIDE, NARROW, SMALL = (1130, 330), (380, 300), (380, 230)
BEYOND = 3.0  # times the exact KL's interval: what is logged above it would flatten everything else
LABEL = 16  # characters of a log's name at the end of its curve
FAR_APART = 10.0  # times: two curves that would not be seen on one linear axis
_FIGURES = tomllib.loads((files("kl_companion.monitor.report") / "curves.toml").read_text("utf-8"))["figure"]


class Figure(NamedTuple):
    """A drawing with its title and its caption."""

    title: str
    caption: str
    drawing: Markup


def drawn_curves(q: Quantities) -> list[Figure]:
    """Return the figures of a log, the KL first; those of numbers that are not known are left out."""
    figures = [_kl(q), *(_figure(q, row) for row in _FIGURES)]
    return [figure for figure in figures if figure is not None]


def _figure(q: Quantities, row: dict[str, Any]) -> Figure | None:
    """Return a figure of curves.toml; None where none of its curves has a value."""
    curves = [_curve(q, **curve) for curve in row["curves"]]
    least = any if row.get("stacked") else bool  # parts of a sum that are 0 throughout are left out
    known = [c for c in curves if least(finite(c.values))]
    if not known:
        return None
    beta = q.setting("beta") if row.get("mark") else None
    marks = [(f"set to {number(beta)}", float(beta))] if beta else []
    panel = Panel(row["title"], q.log.steps, known, stacked=row.get("stacked", False), marks=marks)
    return Figure(panel.title, row["caption"], Markup(panel_svg(panel, *SMALL)))


def _curve(q: Quantities, column: str, tone: str = "", label: str = "", *, band: bool = False) -> RunCurve:
    """Return a curve of a quantity of every log, or of a column of the monitor."""
    low, high = (q.recorded(f"{column}_{end}") if band else () for end in ("low", "high"))
    return RunCurve(label, color(tone or column), q.series(column) or q.recorded(column), low, high)


def compared_curves(both: Sequence[Quantities], names: Sequence[str]) -> list[Figure]:
    """Return one figure with the KL per answer of two logs; none where neither has it."""
    colors = (color("reverse_kl"), color("logged"))
    labels = [x if len(x) <= LABEL else f"{x[: LABEL - 1]}…" for x in names]
    labels = labels if len(set(labels)) == len(labels) else ["the first log", "the second log"]
    known = [
        RunCurve(label, tone, nats, steps=q.log.steps)
        for q, label, tone in zip(both, labels, colors, strict=True)
        if finite(nats := nats_per_answer(q))
    ]
    if not known:
        return []
    largest = [max(finite(curve.values)) for curve in known]
    logarithmic = min(largest) > 0 and max(largest) > FAR_APART * min(largest)
    caption = "By step; a KL per token depends on length, estimator and average."
    caption += " The axis is logarithmic." if logarithmic else ""
    panel = Panel("KL to the reference, nats per answer", known[0].steps, known, logarithmic=logarithmic)
    return [Figure(panel.title, caption, _both_widths(panel))]


def _both_widths(panel: Panel) -> Markup:
    """Return a drawing for a wide page and one for a narrow page, of which the style shows one."""
    sizes = {"wide": WIDE, "narrow": NARROW}
    drawings = (
        panel_svg(panel, *size).replace("<svg ", f'<svg class="{x}" ', 1) for x, size in sizes.items()
    )
    return Markup("".join(drawings))


def _kl(q: Quantities) -> Figure | None:
    """Return the KL to the reference, of a monitored run with its interval beside what the trainer logs."""
    kl, logged = q.reference, q.logged
    both = [kl] if logged is kl else [kl, logged]
    shown = [_kl_curve(q, x) for x in both if x is not None and finite(x.series)]
    if not shown:
        return None
    exact = kl is not None and kl.estimator == "exact"
    bounds = finite([*q.recorded("kl"), *q.recorded("kl_high")])
    top = BEYOND * max(bounds) if bounds and max(bounds) > 0 else None
    caption = "The band is the 95 % interval of the exact KL" if exact else "As the log has it"
    caption += "; a dot is what the trainer logged." if exact and logged is not None else "."
    beyond = [x for x in finite(logged.series if logged else ()) if top is not None and x > top]
    if beyond:
        caption += f" Triangles are logged numbers above the axis, up to {number(max(beyond))}."
    broken = [s for s, _ in q.log.recorded.broken.get("logged", ())] if q.log.recorded else []
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        caption += f" Not a number: step {broken[0]:g}{more}."
    unit = "nats per answer" if kl is not None and kl.average == "sum" else "nats per token"
    panel = Panel(f"KL to the reference, {unit}", q.log.steps, shown, top=top)
    return Figure(panel.title, caption, _both_widths(panel))


def _kl_curve(q: Quantities, kl: KlNumber) -> RunCurve:
    """Return the curve of a KL in the color of its estimator."""
    if kl.estimator == "exact":
        low, high = (q.recorded(f"kl_{end}") if kl.average == "tokens" else () for end in ("low", "high"))
        return RunCurve("exact", color("reverse_kl"), kl.series, low, high)
    tone = kl.estimator.lstrip("-").lower()
    tone = tone if tone in ("k1", "k2", "k3") else "logged"
    label = "" if kl is not q.logged else kl.estimator.replace("-", "minus ") or "logged"
    return RunCurve(label, color(tone), kl.series, points=kl is q.logged)
