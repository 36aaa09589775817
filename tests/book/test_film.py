"""A film in the triangle: frames and drawing by hand for a small case."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
import torch

from kl_book.film import TriangleFilm
from kl_companion.plotting import color

GOES = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
RESTS = torch.full((3, 3), 1 / 3, dtype=torch.float64)


def film(**changes: Any) -> TriangleFilm:
    numbers = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)
    arguments = {
        "ways": {"goes": GOES, "rests": RESTS},
        "lines": {"nats of goes": numbers, "of rests": torch.full_like(numbers, 1e-9)},
        "tokens": ("a", "b", "<c>"),
        "reference": RESTS[0],
        "field": (RESTS[:2], torch.tensor([[1.0, -1, 0], [0, 1e-9, -1e-9]], dtype=torch.float64)),
        "stations": (0, 1),
        "of_lines": "nats",
        "alt": "One goes to <c>, one rests.",
        "caption": "Where & when.",
        "colors": {"goes": "k3", "rests": "k1", "nats of goes": "exact", "of rests": "k1"},
        **changes,
    }
    return TriangleFilm(arguments.pop("ways"), arguments.pop("lines"), **arguments)


def drawn(made: TriangleFilm, name: str, key: str) -> list[str]:
    """An attribute of all elements of a class, in the order of the drawing."""
    tags = re.findall(rf'<\w+ class="kl-{name}"[^>]*>', made.html)
    return [re.search(rf' {key}="([^"]*)"', tag)[1] for tag in tags]  # type: ignore[index]


def test_frames_are_numbers_and_the_drawing_is_the_last() -> None:
    made = film()
    assert made.frames["updates"] == [0, 1, 2]
    assert made.frames["lines"] == [[0, 0], [1, 0], [0.5, 0]]  # what is smaller than a millionth is zero
    data = re.search(r'data-frames="([^"]*)"', made.html)
    assert data
    assert json.loads(html.unescape(data[1])) == made.frames
    assert drawn(made, "way", "stroke") == [color("k1"), color("k3")]  # the first path lies on top
    assert drawn(made, "place", "fill") == [color("k1"), color("k3")]
    rests, goes = drawn(made, "way", "points")
    assert len(set(rests.split())) == 1
    ends = [f"{x},{y}" for x, y in zip(drawn(made, "place", "cx"), drawn(made, "place", "cy"), strict=True)]
    assert ends == [rests.split()[-1], goes.split()[-1]]


def test_corners_are_where_the_tokens_are_named() -> None:
    middle, right, top = (tuple(map(float, p.split(","))) for p in drawn(film(), "way", "points")[1].split())
    assert middle == pytest.approx((180, right[1]))
    assert right[0] - middle[0] == pytest.approx(145)
    assert top == pytest.approx((180, right[1] - 290 * 3**0.5 / 2), abs=0.1)
    names = re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="middle"[^>]*>([ab]|&lt;c&gt;)<', film().html
    )
    assert [(float(x), name) for x, _, name in names] == [(35, "a"), (325, "b"), (180, "&lt;c&gt;")]


def test_stations_stand_on_the_first_path_and_below_the_lines() -> None:
    made = film(stations=(1,))
    said = re.findall(r">(step \d+|\d+)</text>", made.html)
    assert said == ["step 1", *said[1:-2], "1", "2"]
    x, y = drawn(made, "way", "points")[1].split()[1].split(",")
    assert f'<circle cx="{x}" cy="{y}" r="3.4"' in made.html


def test_arrows_have_one_scale_and_tiny_ones_are_left_out() -> None:
    (path,) = drawn(film(), "field", "d")
    parts = [tuple(map(float, p.split(","))) for p in re.findall(r"[\d.]+,[\d.]+", path)]
    assert len(parts) == 5  # one arrow: tail, tip, and the barbs with the tip between
    assert parts[1][0] - parts[0][0] == pytest.approx(-26)
    assert parts[1][1] == parts[0][1]


def test_the_figure_counts_as_one_of_the_book() -> None:
    made = film()
    assert made.html.startswith('<figure class="kl-figure kl-moving"><div class="kl-stage"')
    assert made.html.endswith("<figcaption>Where &amp; when.</figcaption></figure>")
    assert 'role="img" aria-label="One goes to &lt;c&gt;, one rests."' in made.html
    assert made.html == made._repr_html_()
    assert repr(made) == "Figure: One goes to <c>, one rests."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ways": {}}, "ways has 0 frames"),
        ({"ways": {"goes": GOES[:, :2]}}, r"ways of 'goes' has the shape \(3, 2\)"),
        ({"ways": {"goes": GOES + 0.1}}, "ways of 'goes' is not all distributions"),
        ({"lines": {"nats of goes": torch.full((3,), torch.nan)}}, "lines of 'nats of goes' has"),
        ({"lines": {"other": torch.zeros(3)}}, "colors has no 'other'"),
        ({"stations": (1, 1)}, r"stations is \[1, 1\]"),
        ({"stations": (2,)}, r"stations is \[2\]"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        film(**changes)
