"""A film in the triangle of policies over three tokens, with numbers of each step below it.

The drawing on the page is the last frame. Numbered stations on the first path show earlier ones, in print
and without JavaScript, too; book/_static/moving.js plays what lies between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from kl_book.moving import (
    DASHES,
    LEFT,
    PLOT,
    RIGHT,
    ROW,
    Stage,
    line_plot,
    round_ticks,
    rounded,
    words_at,
)
from kl_companion.plotting import color

_SIDE, _EDGE, _LONGEST = 290, 35, 26  # of the triangle, beside it, and of the longest arrow
# so that arrows do not strike out the words above them
_HALO = 'style="paint-order:stroke;stroke:var(--pst-color-background,#fff);stroke-width:4px"'
_CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]], dtype=torch.float64)


class TriangleFilm(Stage):
    """A film of policies over three tokens, whose frames have no bars."""

    def __init__(
        self,
        ways: Mapping[str, torch.Tensor],
        lines: Mapping[str, torch.Tensor],
        *,
        tokens: Sequence[str],
        reference: torch.Tensor,
        field: tuple[torch.Tensor, torch.Tensor],
        stations: Sequence[int],
        of_lines: str,
        alt: str,
        caption: str,
        colors: Mapping[str, str],
    ) -> None:
        """Draw the last frame, its stations, and the lines.

        Args:
            ways: Names of paths to the policy at each step, [steps, 3].
            lines: Names of numbers to the number at each step, [steps].
            tokens: Names of the three tokens.
            reference: Probabilities of the reference, [3].
            field: Policies and the changes that small steps make there, [points, 3] each.
            stations: Steps that are marked on the first path and below the lines, increasing.
            of_lines: What the lines show, in words.
            alt: What the figure shows, for readers who do not see it.
            caption: Text below the figure.
            colors: Paths and lines to the names whose colors they have (`kl_companion.plotting.color`).

        Raises:
            ValueError: A path or a line has another shape or numbers that are not finite, a policy is not a
                distribution, a name has no color, or a station is not a step.
        """
        steps = _checked(ways, lines, colors, stations)
        values = torch.stack(list(lines.values()), 1)
        ticks = round_ticks(values.min().item(), values.max().item())
        foot = ROW * (len(ways) + 2) + 20 + _SIDE * 3**0.5 / 2
        top = foot + ROW * (len(lines) + 3.5)
        self.alt = alt.strip()
        self.frames = {
            "updates": list(range(steps)),
            "unit": "step",
            "names": list(lines),
            "told": of_lines,
            "bars": [[]] * steps,
            "lines": rounded(values.round(decimals=6)),
            "x": [LEFT, RIGHT],
            "y": [top + PLOT, top, ticks[0], ticks[-1]],
        }
        self._foot = foot
        shades = [color(colors[name]) for name in lines]
        drawing = [
            _legend({name: color(colors[name]) for name in ways}),
            self._triangle(tokens, reference),
            self._field(*field),
            self._ways(ways, colors, stations),
            _names_of_lines(lines, shades, foot + ROW * 2.6),
            line_plot(self.frames, shades, of_lines, ticks, {}, [*stations, steps - 1]),
        ]
        self._set(drawing, top + PLOT + 38, caption)

    def _at(self, policies: torch.Tensor) -> list[list[float]]:
        x, y = (policies @ _CORNERS).T
        return torch.stack([_EDGE + _SIDE * x, self._foot - _SIDE * y], 1).tolist()

    def _triangle(self, tokens: Sequence[str], reference: torch.Tensor) -> str:
        (x1, y), (x2, _), (x3, high) = self._at(torch.eye(3, dtype=torch.float64))
        ((cx, cy),) = self._at(reference[None])
        return (
            f'<path d="M{x1:g},{y:g}H{x2:g}L{x3:g},{high:.2f}Z" fill="none" stroke="currentColor" '
            f'stroke-opacity="0.45"/>{words_at(tokens[0], x1, y + 17, "middle")}'
            f"{words_at(tokens[1], x2, y + 17, 'middle')}{words_at(tokens[2], x3, high - 7, 'middle')}"
            f'<circle cx="{cx:.2f}" cy="{cy:.2f}" r="7" fill="none" stroke="currentColor" stroke-width="2"/>'
        )

    def _field(self, points: torch.Tensor, changes: torch.Tensor) -> str:
        scale = _LONGEST / (changes @ _CORNERS).norm(dim=-1).max().item()
        parts = []
        for (x, y), (dx, dy) in zip(self._at(points), (changes @ _CORNERS * scale).tolist(), strict=True):
            long = (dx**2 + dy**2) ** 0.5
            if long > 1:
                barb = min(4.5, long / 2) / long
                wings = [
                    f"{x + dx - barb * (dx + s * 0.6 * dy):.1f},{y - dy + barb * (dy - s * 0.6 * dx):.1f}"
                    for s in (1, -1)
                ]
                tip = f"{x + dx:.1f},{y - dy:.1f}"
                parts.append(f"M{x:.1f},{y:.1f}L{tip}M{wings[0]}L{tip}L{wings[1]}")
        look = 'fill="none" stroke="currentColor" stroke-opacity="0.35" stroke-width="1.3"'
        return f'<path class="kl-field" d="{"".join(parts)}" {look}/>'

    def _ways(
        self, ways: Mapping[str, torch.Tensor], colors: Mapping[str, str], stations: Sequence[int]
    ) -> str:
        parts = []
        for i, (name, policies) in reversed(list(enumerate(ways.items()))):
            shade, points = color(colors[name]), self._at(policies)
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            look = f'fill="none" stroke="{shade}" stroke-width="2.8" stroke-linejoin="round"'
            parts.append(f'<polyline class="kl-way" points="{path}" {look}/>')
            for step in stations if i == 0 else ():
                x, y = points[step]
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" fill="{shade}"/>')
                words = words_at("step " * (step == stations[0]) + f"{step}", x + 7, y - 5, "start")
                parts.append(words.replace("<text", f"<text {_HALO}", 1))
        for name, policies in reversed(list(ways.items())):
            x, y = self._at(policies[-1:])[0]
            look = f'fill="{color(colors[name])}" stroke="currentColor" stroke-width="1.2"'
            parts.append(f'<circle class="kl-place" cx="{x:.1f}" cy="{y:.1f}" r="5.5" {look}/>')
        return "".join(parts)


def _legend(shades: Mapping[str, str]) -> str:
    rows = []
    for i, (name, shade) in enumerate(shades.items()):
        y = ROW * i + 9
        rows.append(
            f'<line x1="0" x2="28" y1="{y}" y2="{y}" stroke="{shade}" stroke-width="2.8"/>'
            f'<circle cx="28" cy="{y}" r="5.5" fill="{shade}"/>{words_at(name, 42, y + 5, "start")}'
        )
    y = ROW * len(shades) + 9
    ring = f'<circle cx="28" cy="{y}" r="6" fill="none" stroke="currentColor" stroke-width="2"/>'
    return "".join(rows) + ring + words_at("reference", 42, y + 5, "start")


def _names_of_lines(names: Mapping[str, Any], shades: Sequence[str], top: float) -> str:
    rows = []
    for i, (name, shade) in enumerate(zip(names, shades, strict=True)):
        y = top + ROW * i
        rows.append(
            f'<line x1="0" x2="34" y1="{y:.1f}" y2="{y:.1f}" stroke="{shade}" stroke-width="2.6" '
            f'stroke-dasharray="{DASHES[i % 3]}"/>{words_at(name, 42, y + 5, "start")}'
        )
    return "".join(rows)


def _checked(
    ways: Mapping[str, torch.Tensor],
    lines: Mapping[str, torch.Tensor],
    colors: Mapping[str, str],
    stations: Sequence[int],
) -> int:
    """Return the number of frames, or raise as `TriangleFilm`."""
    steps = len(next(iter(ways.values()), ()))
    if steps < 2:
        raise ValueError(f"ways has {steps} frames, wanted paths of at least 2")
    for role, series, shape in (("ways", ways, (steps, 3)), ("lines", lines, (steps,))):
        for name, numbers in series.items():
            if tuple(numbers.shape) != shape or not numbers.isfinite().all():
                raise ValueError(
                    f"{role} of {name!r} has the shape {tuple(numbers.shape)}, wanted {shape}, all finite"
                )
            if name not in colors:
                raise ValueError(f"colors has no {name!r}, wanted the color of every path and line")
    for name, policies in ways.items():
        if policies.min() < 0 or (policies.sum(-1) - 1).abs().max() > 1e-9:
            raise ValueError(f"ways of {name!r} is not all distributions, wanted probabilities that sum to 1")
    if any(b <= a for a, b in pairwise([-1, *stations, steps - 1])):
        raise ValueError(f"stations is {list(stations)}, wanted increasing steps below {steps - 1}")
    return steps
