"""Curves by step as SVG that takes the page's colors: lines with bands, points, and stacked areas."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from kl_companion.monitor.report.verdicts import finite, is_finite, number

MOST_POINTS = 120  # observations that are drawn as points too; more run together
LINE = 16  # between labels at the ends of curves
CHARACTER = 7.8  # width of one in a wide typeface
LEFT, TOP, BOTTOM = 50.0, 12.0, 30.0


class RunCurve(NamedTuple):
    """One curve.

    Attributes:
        label: What stands at its end, before the last value.
        color: As `#rrggbb`.
        values: One per step; None and what is not finite leave a gap.
        low: Lower ends of a band, as many.
        high: Upper ends.
        points: Draw the observations, and between them a thin line.
    """

    label: str
    color: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    points: bool = False


class Panel(NamedTuple):
    """Curves over one axis of steps.

    Attributes:
        title: What is drawn, with its unit.
        steps: Of the observations.
        curves: One or more.
        stacked: Whether the curves are parts of a sum.
        marks: Horizontal lines, text and value.
        top: The highest value that is drawn, where a few values would flatten all others.
    """

    title: str
    steps: Sequence[int]
    curves: Sequence[RunCurve]
    stacked: bool = False
    marks: Sequence[tuple[str, float]] = ()
    top: float | None = None


class _Axes(NamedTuple):
    """Where steps and values are on the paper, in pixels."""

    steps: tuple[float, float]
    values: tuple[float, float]
    width: float
    height: float
    right: float

    def x(self, step: float) -> float:
        first, last = self.steps
        return LEFT + (self.width - LEFT - self.right) * (
            (step - first) / (last - first) if last > first else 0.5
        )

    def y(self, value: float) -> float:
        low, high = self.values
        inside = min(max(value, low), high)
        return TOP + (self.height - TOP - BOTTOM) * (high - inside) / (high - low)


def panel_svg(panel: Panel, width: int, height: int) -> str:
    """The panel as one `<svg>` element, with its description for readers who do not see it."""
    curves = _sums(panel.curves) if panel.stacked else list(panel.curves)
    named = len(curves) > 1
    said = [c.label if panel.stacked else _end_label(c, named) for c in curves]
    longest = max([len(text) for text in said] + [len(text) for text, _ in panel.marks])
    axes = _axes(panel, curves, width, height, right=14 + CHARACTER * longest)
    parts = _grid(axes)
    for _, value in panel.marks:
        y = axes.y(value)
        parts.append(f'<path class="mark" d="M{LEFT:.0f} {y:.1f}H{width - axes.right:.1f}"/>')
    below: Sequence[float | None] = [0.0] * len(panel.steps)
    for curve in curves:
        if panel.stacked:
            parts.append(_area(axes, panel.steps, below, curve.values, curve.color, 0.55))
            below = curve.values
        elif curve.low and curve.high:
            parts.append(_area(axes, panel.steps, curve.low, curve.high, curve.color, 0.2))
        parts.append(_line(axes, panel.steps, curve))
    for curve in curves:
        if curve.points and len(panel.steps) <= MOST_POINTS:
            parts += _points(axes, panel.steps, curve)
    parts += _labels(axes, curves, said, panel.marks)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(described(panel))}">'
        f"{''.join(parts)}</svg>"
    )


def described(panel: Panel) -> str:
    """The curves of a panel as sentences: where each begins and ends, and its highest value."""
    told = [f"{panel.title}, by step."]
    for curve in panel.curves:
        known = [(s, v) for s, v in zip(panel.steps, curve.values, strict=True) if is_finite(v)]
        name = curve.label or "The curve"
        if not known:
            told.append(f"{name}: no value.")
            continue
        most = max(known, key=lambda pair: pair[1])
        told.append(
            f"{name}: {number(known[0][1])} at step {known[0][0]}, {number(known[-1][1])} at step "
            f"{known[-1][0]}, at most {number(most[1])} at step "
            f"{most[0]}."
        )
    told += [f"A line marks {text}." for text, _ in panel.marks]
    return " ".join(told)


def _sums(curves: Sequence[RunCurve]) -> list[RunCurve]:
    """Curves on top of each other."""
    found: list[RunCurve] = []
    for curve in curves:
        below = found[-1].values if found else [0.0] * len(curve.values)
        values = [None if b is None else b + (v or 0.0) for b, v in zip(below, curve.values, strict=True)]
        found.append(curve._replace(values=values))
    return found


def _end_label(curve: RunCurve, named: bool) -> str:
    known = finite(curve.values)
    value = number(known[-1]) if known else "no value"
    return f"{curve.label} {value}" if named else value


def _axes(panel: Panel, curves: Sequence[RunCurve], width: int, height: int, *, right: float) -> _Axes:
    values = [x for c in curves for series in (c.values, c.low, c.high) for x in finite(series)]
    values += [value for _, value in panel.marks] + [0.0]
    low, high = min(values), max(values)
    if panel.top is not None:
        high = min(high, panel.top)
        low = max(low, -panel.top)
    if high <= low:
        high = low + 1.0
    step = _nice((high - low) / 4)
    edges = (math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)
    return _Axes((panel.steps[0], panel.steps[-1]), edges, width, height, right)


def _nice(x: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(x))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= x * (1 - 1e-9))


def _ticks(low: float, high: float, most: int) -> list[float]:
    step = _nice((high - low) / most) if high > low else 1.0
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _grid(axes: _Axes) -> list[str]:
    parts = []
    end = axes.width - axes.right
    for value in _ticks(*axes.values, 5):
        y = axes.y(value)
        parts.append(f'<path class="grid" d="M{LEFT:.0f} {y:.1f}H{end:.1f}"/>')
        place = f'x="{LEFT - 7:.0f}" y="{y + 4:.1f}" text-anchor="end"'
        parts.append(f'<text class="tick" {place}>{number(value)}</text>')
    steps = [s for s in _ticks(*axes.steps, max(3, int((end - LEFT) / 85))) if s == int(s)]
    for step in steps or [axes.steps[0]]:
        x = axes.x(step)
        place = f'x="{x:.1f}" y="{axes.height - 9:.0f}" text-anchor="middle"'
        parts.append(f'<text class="tick" {place}>{int(step):,}</text>')
    return parts


def _runs(
    axes: _Axes, steps: Sequence[int], values: Sequence[float | None]
) -> list[list[tuple[float, float]]]:
    """Points of a curve in pieces without gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for step, value in zip(steps, values, strict=True):
        if is_finite(value):
            pieces[-1].append((axes.x(step), axes.y(value)))
        else:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _line(axes: _Axes, steps: Sequence[int], curve: RunCurve) -> str:
    # a piece of one point is a dot, by the round end of a line of no length
    drawn = "".join(_path(p if len(p) > 1 else [*p, *p]) for p in _runs(axes, steps, curve.values))
    kind = "thin" if curve.points else "line"
    return f'<path class="{kind}" stroke="{curve.color}" d="{drawn}"/>' if drawn else ""


def _area(
    axes: _Axes,
    steps: Sequence[int],
    low: Sequence[float | None],
    high: Sequence[float | None],
    color: str,
    opacity: float,
) -> str:
    both = [None if a is None or b is None else (a, b) for a, b in zip(low, high, strict=True)]
    bottoms = _runs(axes, steps, [None if pair is None else pair[0] for pair in both])
    tops = _runs(axes, steps, [None if pair is None else pair[1] for pair in both])
    drawn = "".join(_path([*top, *bottom[::-1]]) + "Z" for bottom, top in zip(bottoms, tops, strict=True))
    return f'<path fill="{color}" fill-opacity="{opacity}" d="{drawn}"/>' if drawn else ""


def _points(axes: _Axes, steps: Sequence[int], curve: RunCurve) -> list[str]:
    """A dot per observation; where it lies beyond the axis, a triangle at its edge."""
    drawn = []
    for step, value in zip(steps, curve.values, strict=True):
        if not is_finite(value):
            continue
        x, y = axes.x(step), axes.y(value)
        beyond = value > axes.values[1] * (1 + 1e-9)
        shape = f"M{x - 2.6:.1f} {y:.1f}a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0"
        if beyond:
            shape = f"M{x - 5:.1f} {y + 9:.1f}h10l-5 -9z"
        told = html.escape(f"step {step}: {number(value)}")
        drawn.append(f'<path fill="{curve.color}" d="{shape}"><title>{told}</title></path>')
    return drawn


def _labels(
    axes: _Axes, curves: Sequence[RunCurve], said: Sequence[str], marks: Sequence[tuple[str, float]]
) -> list[str]:
    """Names and last values at the ends of the curves, moved apart."""
    ends: list[tuple[float, str, str]] = [(axes.y(value), text, "") for text, value in marks]
    for curve, text in zip(curves, said, strict=True):
        known = finite(curve.values)
        if known:
            ends.append((axes.y(known[-1]), text, curve.color))
    ends.sort()
    places = [end[0] for end in ends]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + LINE)
    for i in range(len(places)):  # and none below the axis
        places[i] = min(places[i], axes.height - BOTTOM - LINE * (len(places) - 1 - i))
    x = axes.width - axes.right + 5
    parts = []
    for place, (_, text, color) in zip(places, ends, strict=True):
        dot = f'<circle cx="{x + 2:.1f}" cy="{place:.1f}" r="3.5" fill="{color}"/>' if color else ""
        parts.append(
            f'{dot}<text class="end" x="{x + 9:.1f}" y="{place + 4.5:.1f}">{html.escape(text)}</text>'
        )
    return parts
