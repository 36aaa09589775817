"""Curves by step as SVG that takes the page's colors: lines with bands, points, and stacked areas."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from kl_companion.monitor.logs.words import finite, is_finite, number

MOST_DRAWN = 2000  # points of a curve, which has 1,100 pixels
MOST_POINTS = 120  # observations that are drawn as points too; more run together
LINE = 16  # between labels at the ends of curves
CHARACTER = 8.5  # width of one in a wide typeface
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
        steps: Where they are other ones than the panel's.
    """

    label: str
    color: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    points: bool = False
    steps: Sequence[float] = ()


class Panel(NamedTuple):
    """Curves over one axis of steps.

    Attributes:
        title: What is drawn, with its unit.
        steps: Of the observations.
        curves: One or more.
        stacked: Whether the curves are parts of a sum.
        marks: Horizontal lines, text and value.
        top: The highest value that is drawn, where a few values would flatten all others.
        logarithmic: Whether the axis of values is logarithmic; values from 0 down are then left out.
    """

    title: str
    steps: Sequence[float]
    curves: Sequence[RunCurve]
    stacked: bool = False
    marks: Sequence[tuple[str, float]] = ()
    top: float | None = None
    logarithmic: bool = False


class _Axes(NamedTuple):
    """Where steps and values are on the paper, in pixels."""

    steps: tuple[float, float]
    values: tuple[float, float]
    width: float
    height: float
    right: float
    logarithmic: bool = False

    def x(self, step: float) -> float:
        first, last = self.steps
        return LEFT + (self.width - LEFT - self.right) * (
            (step - first) / (last - first) if last > first else 0.5
        )

    def y(self, value: float) -> float:
        low, high = self.values
        inside = min(max(value, low), high)
        if self.logarithmic:
            low, high, inside = math.log(low), math.log(high), math.log(inside)
        return TOP + (self.height - TOP - BOTTOM) * (high - inside) / (high - low)


def panel_svg(panel: Panel, width: int, height: int) -> str:
    """Return the panel as one `<svg>` element, with its description for readers who do not see it."""
    curves = [_placed(curve, panel) for curve in panel.curves]
    curves = _sums(curves) if panel.stacked else curves
    named = len(curves) > 1
    labels = [c.label if panel.stacked else _end_label(c, named) for c in curves]
    longest = max([len(text) for text in labels] + [len(text) for text, _ in panel.marks])
    axes = _axes(panel, curves, width, height, right=14 + CHARACTER * longest)
    parts = _grid(axes)
    for _, value in panel.marks:
        y = axes.y(value)
        parts.append(f'<path class="mark" d="M{LEFT:.0f} {y:.1f}H{width - axes.right:.1f}"/>')
    below: Sequence[float | None] = [0.0] * max(len(curve.values) for curve in curves)
    for curve in curves:
        if panel.stacked:
            parts.append(_area(axes, curve._replace(low=below, high=curve.values), 0.55))
            below = curve.values
        elif curve.low and curve.high:
            parts.append(_area(axes, curve, 0.2))
        parts.append(_line(axes, curve))
    for curve in curves:
        if curve.points and len(curve.steps) <= MOST_POINTS:
            parts += _points(axes, curve)
    parts += _labels(axes, curves, labels, panel.marks)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(described(panel))}">'
        f"{''.join(parts)}</svg>"
    )


def _placed(curve: RunCurve, panel: Panel) -> RunCurve:
    """Return a curve with its steps, without what its axis does not have, and thinned where it is long."""
    stride = slice(None, None, 1 + len(curve.values) // MOST_DRAWN)
    values = [x if not panel.logarithmic or (is_finite(x) and x > 0) else None for x in curve.values]
    return curve._replace(
        values=values[stride],
        steps=(curve.steps or panel.steps)[stride],
        low=curve.low[stride],
        high=curve.high[stride],
    )


def described(panel: Panel) -> str:
    """Return the curves of a panel as sentences: where each begins and ends, and its highest value."""
    texts = [f"{panel.title}, by step."]
    for curve in panel.curves:
        steps = curve.steps or panel.steps
        known = [(s, v) for s, v in zip(steps, curve.values, strict=True) if is_finite(v)]
        name = curve.label or "The curve"
        if not known:
            texts.append(f"{name}: no value.")
            continue
        (begin, first), (end, last) = known[0], known[-1]
        step, most = max(known, key=lambda pair: pair[1])
        texts.append(
            f"{name}: {number(first)} at step {begin:g}, {number(last)} at step {end:g}, at most "
            f"{number(most)} at step {step:g}."
        )
    texts += [f"A line marks {text}." for text, _ in panel.marks]
    return " ".join(texts)


def _sums(curves: Sequence[RunCurve]) -> list[RunCurve]:
    """Return the curves on top of each other; a part that is not known is none."""
    sums: list[RunCurve] = []
    for curve in curves:
        below = sums[-1].values if sums else [0.0] * len(curve.values)
        pairs = zip(below, curve.values, strict=True)
        values = [None if b is None else b + (v if is_finite(v) else 0.0) for b, v in pairs]
        sums.append(curve._replace(values=values))
    return sums


def _end_label(curve: RunCurve, named: bool) -> str:
    known = finite(curve.values)
    value = number(known[-1]) if known else "no value"
    return f"{curve.label} {value}" if named else value


def _axes(panel: Panel, curves: Sequence[RunCurve], width: int, height: int, *, right: float) -> _Axes:
    values = [x for c in curves for series in (c.values, c.low, c.high) for x in finite(series)]
    values += [value for _, value in panel.marks]
    values += [] if panel.logarithmic and values else [0.0]
    low, high = min(values), max(values)
    if panel.top is not None:
        high = min(high, panel.top)
        low = max(low, -panel.top)
    if high <= low and not panel.logarithmic:
        high = low + 1.0
    steps = [step for curve in curves for step in curve.steps]
    if panel.logarithmic:
        first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
        edges = (10.0**first, 10.0 ** max(last, first + 1))
    else:
        step = _nice((high - low) / 4)
        edges = (math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)
    return _Axes((min(steps), max(steps)), edges, width, height, right, panel.logarithmic)


def _nice(x: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(x))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= x * (1 - 1e-9))


def _ticks(low: float, high: float, most: int) -> list[float]:
    step = _nice((high - low) / most) if high > low else 1.0
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Return the powers of ten between two powers of ten."""
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _grid(axes: _Axes) -> list[str]:
    parts = []
    end = axes.width - axes.right
    values = _powers(*axes.values) if axes.logarithmic else _ticks(*axes.values, 5)
    for value in values:
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
    axes: _Axes, steps: Sequence[float], values: Sequence[float | None]
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


def _line(axes: _Axes, curve: RunCurve) -> str:
    # a piece of one point is a dot, by the round end of a line of no length
    drawn = "".join(_path(p if len(p) > 1 else [*p, *p]) for p in _runs(axes, curve.steps, curve.values))
    kind = "thin" if curve.points else "line"
    return f'<path class="{kind}" stroke="{curve.color}" d="{drawn}"/>' if drawn else ""


def _area(axes: _Axes, curve: RunCurve, opacity: float) -> str:
    pairs = zip(curve.low, curve.high, strict=True)
    both = [(a, b) if is_finite(a) and is_finite(b) else None for a, b in pairs]
    bottoms = _runs(axes, curve.steps, [None if pair is None else pair[0] for pair in both])
    tops = _runs(axes, curve.steps, [None if pair is None else pair[1] for pair in both])
    drawn = "".join(_path([*top, *bottom[::-1]]) + "Z" for bottom, top in zip(bottoms, tops, strict=True))
    return f'<path fill="{curve.color}" fill-opacity="{opacity}" d="{drawn}"/>' if drawn else ""


def _points(axes: _Axes, curve: RunCurve) -> list[str]:
    """A dot per observation; where it lies beyond the axis, a triangle at its edge."""
    drawn = []
    for step, value in zip(curve.steps, curve.values, strict=True):
        if not is_finite(value):
            continue
        x, y = axes.x(step), axes.y(value)
        beyond = value > axes.values[1] * (1 + 1e-9)
        shape = f"M{x - 2.6:.1f} {y:.1f}a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0"
        if beyond:
            shape = f"M{x - 5:.1f} {y + 9:.1f}h10l-5 -9z"
        told = html.escape(f"step {step:g}: {number(value)}")
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
