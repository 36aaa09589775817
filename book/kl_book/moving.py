"""Figures that move: all frames are computed here, and book/_static/moving.js shows one at a time.

The drawing on the page is the last frame, which print and readers without JavaScript see, too. Above are
bars, one of each series for every token; below is one number of each series against the updates.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from kl_companion.plotting import color

WIDE, LEFT, RIGHT = 360, 62, 344  # of the drawing, and where bars and curves begin and end
ROW, _BAR, _GAP, _AXIS, PLOT = 18, 8, 9, 34, 132  # heights
DASHES = ("none", "7 4", "2 3")
TEXT = 'fill="currentColor" stroke="none" font-size="13"'


class Stage:
    """A figure of frames that book/_static/moving.js plays; ``html`` is its markup.

    Attributes:
        html: The figure, with its last frame as a drawing and all frames as data.
        frames: What the page's script reads: values as they are drawn and told, to five digits.
        alt: What the figure shows, in a sentence.
    """

    html: str
    frames: dict[str, Any]
    alt: str

    def _set(self, drawing: Sequence[str], height: float, caption: str) -> None:
        """Make the markup, of parts of the drawing of the last frame and its height."""
        data = html.escape(json.dumps(self.frames, ensure_ascii=False, separators=(",", ":")))
        self.html = (
            f'<figure class="kl-figure kl-moving"><div class="kl-stage" data-frames="{data}">'
            f'<svg viewBox="0 0 {WIDE} {height:.0f}" role="img" aria-label="{html.escape(self.alt)}" '
            f'style="width:100%;max-width:32rem;height:auto" font-family="inherit">{"".join(drawing)}</svg>'
            f"</div><figcaption>{html.escape(caption.strip())}</figcaption></figure>"
        )

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"


class Moving(Stage):
    """A figure of several series over updates."""

    def __init__(
        self,
        bars: Mapping[str, torch.Tensor],
        lines: Mapping[str, torch.Tensor],
        *,
        tokens: Sequence[str],
        updates: Sequence[int],
        of_bars: str,
        of_lines: str,
        alt: str,
        caption: str,
        colors: Mapping[str, str],
        guides: Mapping[str, Sequence[float]] | None = None,
        unit: str = "update",
    ) -> None:
        """Draw the last frame and note all of them.

        Args:
            bars: Series to probabilities, [frames, tokens].
            lines: The same series to one number a frame, [frames].
            tokens: Names of the tokens.
            updates: How many updates precede each frame, increasing.
            of_bars: What the bars show, in words.
            of_lines: What the lines show, in words.
            alt: What the figure shows, for readers who do not see it.
            caption: Text below the figure.
            colors: Series to the name whose color it has (`kl_companion.plotting.color`).
            guides: Labels of straight dotted lines to their heights at the first and at the last frame.
            unit: What is counted, below the lines and at the slider, where an update is something else.

        Raises:
            ValueError: fewer than two frames, frames of unequal length, numbers that are not finite, bars
                outside 0 to 1, updates that do not increase, other names in one of the mappings, or no text.
        """
        guides = dict(guides or {})
        _check(bars, lines, tokens, updates, colors)
        said = {"alt": alt, "caption": caption, "of_bars": of_bars, "of_lines": of_lines, "unit": unit}
        for name, text in said.items():
            if not text.strip():
                raise ValueError(f"{name} is {text!r}, wanted text that says what the figure shows")
        for name, pair in guides.items():
            if len(pair) != 2 or not all(map(math.isfinite, pair)):
                raise ValueError(f"guide {name!r} is {tuple(pair)}, wanted two finite heights")
        heights = torch.cat(
            [*lines.values(), *(torch.tensor(pair, dtype=torch.float64) for pair in guides.values())]
        )
        ticks = round_ticks(heights.min().item(), heights.max().item())
        top = ROW * (len(bars) + 2) + 4
        foot = top + len(tokens) * (len(bars) * _BAR + _GAP) + _AXIS + ROW
        self.alt = alt.strip()
        self.frames = {
            "updates": list(updates),
            "unit": unit,
            "names": list(bars),
            "told": of_lines,
            "bars": rounded(torch.stack(list(bars.values()), 1)),
            "lines": rounded(torch.stack(list(lines.values()), 1)),
            "x": [LEFT, RIGHT],
            "y": [foot + PLOT, foot, ticks[0], ticks[-1]],
        }
        shades = [color(colors[name]) for name in bars]
        bars_of_tokens = self._bars(list(tokens), shades, of_bars, top)
        plot = line_plot(self.frames, shades, of_lines, ticks, guides)
        self._set([self._legend(shades), bars_of_tokens, plot], foot + PLOT + 22, caption)

    def _legend(self, shades: list[str]) -> str:
        rows = []
        for i, (name, shade) in enumerate(zip(self.frames["names"], shades, strict=True)):
            y = ROW * i + 12
            line = f'stroke="{shade}" stroke-width="3" stroke-dasharray="{DASHES[i % 3]}"'
            rows.append(
                f'<rect x="0" y="{y - 7}" width="14" height="8" fill="{shade}"/>'
                f'<line x1="20" x2="52" y1="{y - 3}" y2="{y - 3}" {line}/>'
                f'<text x="{LEFT}" y="{y + 2}" {TEXT}>{html.escape(name)}</text>'
            )
        return "".join(rows)

    def _bars(self, tokens: list[str], shades: list[str], title: str, top: int) -> str:
        low = top + len(tokens) * (len(shades) * _BAR + _GAP)
        parts = [f'<text x="0" y="{top - 10}" {TEXT}>{html.escape(title)}</text>']
        for tick in (0, 0.5, 1):
            x = LEFT + tick * (RIGHT - LEFT)
            parts.append(thin_line(x, x, top, low) + words_at(f"{tick:g}", x, low + 14, "middle"))
        for j, token in enumerate(tokens):
            y = top + j * (len(shades) * _BAR + _GAP) + _GAP / 2
            parts.append(words_at(token, LEFT - 8, y + len(shades) * _BAR / 2 + 5, "end"))
            for i, shade in enumerate(shades):
                first, last = (self.frames["bars"][at][i][j] * (RIGHT - LEFT) for at in (0, -1))
                at = f'y="{y + i * _BAR:g}" height="{_BAR - 1}"'
                parts.append(f'<rect class="kl-bar" x="{LEFT}" width="{last:.2f}" {at} fill="{shade}"/>')
                parts.append(f'<rect x="{LEFT + first - 0.75:.2f}" width="1.5" {at} fill="currentColor"/>')
        return "".join(parts)


def line_plot(
    frames: Mapping[str, Any],
    shades: Sequence[str],
    title: str,
    ticks: Sequence[float],
    guides: Mapping[str, Sequence[float]],
    marks: Sequence[int] = (),
) -> str:
    """Return the markup of numbers against the updates: the last frame, of which the page shows less.

    Args:
        frames: As `Moving.frames`, of which the updates, their unit, the names, the lines and ``y`` are read.
        shades: Colors of the lines.
        title: What the lines show.
        ticks: Heights that are named.
        guides: As `Moving` takes them.
        marks: Updates that are named and marked with an upright line; none for the first and the last.
    """
    bottom, top, low, high = frames["y"]
    updates, lines = frames["updates"], frames["lines"]

    def at(update: float, value: float) -> tuple[float, float]:
        x = LEFT + (update - updates[0]) / (updates[-1] - updates[0]) * (RIGHT - LEFT)
        return round(x, 2), round(bottom - (value - low) / (high - low) * (bottom - top), 2)

    parts = [f'<text x="0" y="{top - 12}" {TEXT}>{html.escape(title)}</text>']
    for tick in ticks:
        _, y = at(updates[0], tick)
        parts.append(
            thin_line(LEFT, RIGHT, y, y) + words_at(f"{tick:g}".replace("-", "−"), LEFT - 8, y + 4, "end")
        )
    for update in marks or (updates[0], updates[-1]):
        x, _ = at(update, low)
        parts.append(thin_line(x, x, top, bottom) if marks else "")
        parts.append(words_at(f"{update}", x, bottom + 16, "middle"))
    parts.append(words_at(frames["unit"], (LEFT + RIGHT) / 2, bottom + (32 if marks else 16), "middle"))
    for name, (start, end) in guides.items():
        (x1, y1), (x2, y2) = at(updates[0], start), at(updates[-1], end)
        parts.append(
            f'<line x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}" stroke="currentColor" stroke-dasharray="1 4"/>'
        )
        beside = 0.8 if end >= start else 0.2  # where the words stay above the line
        x, y = (a + beside * (b - a) for a, b in ((x1, x2), (y1, y2)))
        parts.append(words_at(name, x, y - 6, "end" if end >= start else "start"))
    for i, shade in enumerate(shades):
        points = [at(update, values[i]) for update, values in zip(updates, lines, strict=True)]
        look = f'stroke="{shade}" stroke-width="2.6" stroke-dasharray="{DASHES[i % 3]}"'
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        parts.append(f'<polyline class="kl-line" points="{path}" fill="none" {look}/>')
        cx, cy = points[-1]
        parts.append(f'<circle class="kl-dot" cx="{cx:g}" cy="{cy:g}" r="4.5" fill="{shade}"/>')
    return "".join(parts)


def thin_line(x1: float, x2: float, y1: float, y2: float) -> str:
    """Return the markup of a line of a grid."""
    ends = f'x1="{x1:g}" x2="{x2:g}" y1="{y1:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="currentColor" stroke-opacity="0.25"/>'


def words_at(text: str, x: float, y: float, anchor: str) -> str:
    """Return the markup of a text at a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {TEXT}>{html.escape(text)}</text>'


def round_ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers from at most the lowest to at least the highest."""
    size = (high - low) or max(abs(high), 1.0)
    unit = 10.0 ** math.floor(math.log10(size))
    step = next(unit * m for m in (0.2, 0.25, 0.5, 1, 2, 2.5) if size / (unit * m) <= 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]


def rounded(values: torch.Tensor) -> list[object]:
    """Return numbers to five digits, as nested lists."""

    def short(x: object) -> object:
        return [short(v) for v in x] if isinstance(x, list) else float(f"{x:.5g}")

    return [short(frame) for frame in values.tolist()]


def _check(
    bars: Mapping[str, torch.Tensor],
    lines: Mapping[str, torch.Tensor],
    tokens: Sequence[str],
    updates: Sequence[int],
    colors: Mapping[str, str],
) -> None:
    if not bars:
        raise ValueError("bars is empty, wanted at least one series")
    for role, named in {"lines": lines, "colors": colors}.items():
        if list(named) != list(bars):
            raise ValueError(f"{role} is of {list(named)}, wanted the series of bars, {list(bars)}")
    count = len(updates)
    if count < 2:
        raise ValueError(f"updates has {count} frames, wanted at least 2")
    if any(b <= a for a, b in pairwise(updates)):
        raise ValueError(f"updates is {list(updates)}, wanted numbers that increase")
    for role, series, shape in (("bars", bars, (count, len(tokens))), ("lines", lines, (count,))):
        for name, values in series.items():
            if tuple(values.shape) != shape:
                raise ValueError(
                    f"{role} of {name!r} has the shape {tuple(values.shape)}, wanted {shape}: "
                    f"{count} frames" + f" of {len(tokens)} tokens" * (role == "bars")
                )
            if not values.isfinite().all():
                at = int((~values.isfinite()).reshape(count, -1).any(-1).nonzero()[0])
                raise ValueError(
                    f"{role} of {name!r} is {values[at].tolist()} in frame {at}, wanted finite numbers"
                )
            outside = values[(values < 0) | (values > 1 + 1e-9)]
            if role == "bars" and len(outside):
                raise ValueError(
                    f"bars of {name!r} has {outside[0].item()}, wanted probabilities, from 0 to 1"
                )
