"""Figures that move: frames and drawing by hand for a small case, and what is refused."""

from __future__ import annotations

import html
import json
import math
import re
from typing import Any

import pytest
import torch

from kl_book.moving import LEFT, RIGHT, Moving
from kl_companion.plotting import color
from tests.support.extensions import extension

figures, numbers = extension("kl_figures"), extension("kl_numbers")

# half a logit per update on the first of two tokens, and a series that stays
LOGITS = [0.0, 0.5, 1.0]
GOES = torch.tensor([[1 / (1 + math.exp(-x)), 1 / (1 + math.exp(x))] for x in LOGITS], dtype=torch.float64)


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "bars": {"goes": GOES, "stays": torch.full((3, 2), 0.5, dtype=torch.float64)},
        "lines": {"goes": torch.tensor(LOGITS).double(), "stays": torch.zeros(3, dtype=torch.float64)},
        "tokens": ("a", "b"),
        "updates": (0, 4, 8),
        "of_bars": "probability",
        "of_lines": "logit of a",
        "alt": "One series goes to <a>, one stays.",
        "caption": "What happens & where.",
        "colors": {"goes": "k1", "stays": "exact"},
        **changes,
    }


def figure(**changes: Any) -> Moving:
    return Moving(**arguments(**changes))


def drawn(made: Moving, name: str, key: str) -> list[str]:
    """An attribute of all elements of a class, in the order of the drawing."""
    return [
        re.search(rf' {key}="([^"]*)"', tag)[1]  # type: ignore[index]
        for tag in re.findall(rf'<\w+ class="kl-{name}"[^>]*>', made.html)
    ]


def test_frames_are_what_was_given() -> None:
    made = figure()
    assert made.frames["updates"] == [0, 4, 8]
    assert made.frames["names"] == ["goes", "stays"]
    assert made.frames["bars"] == [
        [[0.5, 0.5], [0.5, 0.5]],
        [[0.62246, 0.37754], [0.5, 0.5]],
        [[0.73106, 0.26894], [0.5, 0.5]],
    ]
    assert made.frames["lines"] == [[0.0, 0.0], [0.5, 0.0], [1.0, 0.0]]
    data = re.search(r'<div class="kl-stage" data-frames="([^"]*)">', made.html)
    assert data
    assert json.loads(html.unescape(data[1])) == made.frames


def test_the_drawing_is_the_last_frame() -> None:
    made = figure()
    wide = RIGHT - LEFT
    widths = [float(x) / wide for x in drawn(made, "bar", "width")]
    assert widths == pytest.approx([0.73106, 0.5, 0.26894, 0.5], abs=1e-4)  # token by token
    assert drawn(made, "bar", "fill") == [color("k1"), color("exact")] * 2
    bottom, top, low, high = made.frames["y"]
    assert (low, high) == (0, 1)
    points = [[tuple(map(float, p.split(","))) for p in x.split()] for x in drawn(made, "line", "points")]
    middle, halfway = (LEFT + RIGHT) / 2, (bottom + top) / 2
    assert points[0] == [(LEFT, bottom), (middle, halfway), (RIGHT, top)]
    assert points[1] == [(LEFT, bottom), (middle, bottom), (RIGHT, bottom)]
    assert [float(x) for x in drawn(made, "dot", "cx")] == [RIGHT, RIGHT]
    assert [float(x) for x in drawn(made, "dot", "cy")] == [top, bottom]


def test_what_is_counted_is_named() -> None:
    assert figure().frames["unit"] == "update"
    assert ">update</text>" in figure().html
    made = figure(unit="gradient step")
    assert made.frames["unit"] == "gradient step"
    assert ">gradient step</text>" in made.html
    assert ">update</text>" not in made.html


def test_updates_stand_at_their_distance() -> None:
    points = drawn(figure(updates=(0, 2, 8)), "line", "points")[0].split()
    assert float(points[1].split(",")[0]) == LEFT + (RIGHT - LEFT) / 4


def test_the_figure_counts_as_one_of_the_book() -> None:
    made = figure(guides={"1 + t": (1, 9)})
    assert made.html.startswith('<figure class="kl-figure kl-moving"><div class="kl-stage"')
    assert made.html.endswith("<figcaption>What happens &amp; where.</figcaption></figure>")
    assert 'role="img" aria-label="One series goes to &lt;a&gt;, one stays."' in made.html
    assert made.html == made._repr_html_()
    assert repr(made) == "Figure: One series goes to <a>, one stays."
    assert made.frames["y"][3] >= 9
    assert ">1 + t</text>" in made.html
    assert "<script" not in made.html  # the page loads it once
    assert "<button" not in made.html  # nothing to click where it does not run


def test_a_page_numbers_it_and_keeps_its_drawing(tmp_path: Any) -> None:
    body = f'<p><a class="kl-fig" href="#figure-1">Figure 1</a></p>{figure().html}'
    page = figures.to_files(numbers.numbered(body, "6"), tmp_path, "_images")
    assert '<a class="kl-fig" href="#figure-1">Figure 6.1</a>' in page
    assert '<figure class="kl-figure kl-moving" id="figure-1">' in page
    assert "<figcaption><span>Figure 6.1.</span> What happens &amp; where.</figcaption>" in page
    assert page.count("<svg") == 1
    assert list(tmp_path.iterdir()) == []


class Loading:
    """What a page loads beyond the rest of the book."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add_css_file(self, name: str) -> None:
        self.names.append(name)

    def add_js_file(self, name: str, loading_method: str) -> None:
        assert loading_method == "defer"
        self.names.append(name)


def test_only_its_page_loads_the_script() -> None:
    for body, wanted in ((figure().html, ["moving.css", "moving.js"]), ('<figure class="kl-figure">', [])):
        page = Loading()
        figures.add_files(page, "a", "page.html", {"body": body}, None)
        assert page.names == wanted
    figures.add_files(Loading(), "genindex", "genindex.html", {}, None)  # which has no text of its own


@pytest.mark.parametrize(
    ("lines", "ticks"),
    [
        ((0.0, 9.0), ["0", "2.5", "5", "7.5", "10"]),
        ((-0.4, 0.3), ["−0.4", "−0.2", "0", "0.2", "0.4"]),
        ((0.5, 0.5), ["0.5", "0.75"]),
        ((0.0, 0.0), ["0", "0.25"]),
    ],
)
def test_ticks_are_round(lines: tuple[float, float], ticks: list[str]) -> None:
    one = {"goes": torch.linspace(*lines, 3, dtype=torch.float64)}
    made = figure(bars={"goes": GOES}, lines=one, colors={"goes": "k1"})
    said = re.findall(r'<text x="54"[^>]*text-anchor="end"[^>]*>([^<]*)</text>', made.html)
    assert said[2:] == ticks
