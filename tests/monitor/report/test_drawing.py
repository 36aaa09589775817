"""Curves as SVG: where the points are, what gaps and bands look like, and what is told of them."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from kl_companion.monitor.report.drawing import BOTTOM, LEFT, TOP, Panel, RunCurve, described, panel_svg

WIDTH, HEIGHT = 400, 240


def drawn(panel):
    return ElementTree.fromstring(panel_svg(panel, WIDTH, HEIGHT))


def points(d):
    """The corners of a path of straight lines."""
    return [tuple(map(float, pair)) for pair in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", d)]


def paths(svg, kind):
    return [p for p in svg.iter("path") if p.get("class") == kind]


def test_a_curve_goes_through_its_values():
    svg = drawn(Panel("KL", [0, 50, 100], [RunCurve("", "#123456", [0.0, 1.0, 0.5])]))
    (line,) = paths(svg, "line")
    (x0, y0), (x1, y1), (x2, y2) = points(line.get("d"))
    assert line.get("stroke") == "#123456"
    assert (x0, y0, y1) == (LEFT, HEIGHT - BOTTOM, TOP)
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.11)
    assert y2 == pytest.approx((y0 + y1) / 2, abs=0.11)
    assert x2 < WIDTH - 20  # where the last value is written
    texts = [t.text for t in svg.iter("text")]
    assert {"0", "1", "0.5", "100"} <= set(texts)
    assert texts[-1] == "0.5"


def test_nan_is_a_gap_and_a_single_value_a_dot():
    svg = drawn(Panel("KL", [1, 2, 3, 4], [RunCurve("", "#123456", [1.0, math.nan, None, 2.0])]))
    (line,) = paths(svg, "line")
    assert line.get("d").count("M") == 2
    one = drawn(Panel("KL", [7], [RunCurve("", "#123456", [1.0])]))
    (first, second) = points(paths(one, "line")[0].get("d"))
    assert first == second


def test_a_band_encloses_its_curve():
    svg = drawn(Panel("KL", [0, 1], [RunCurve("", "#123456", [0.5, 0.5], [0.0, 0.4], [1.0, 0.6])]))
    (band,) = [p for p in svg.iter("path") if p.get("fill-opacity") == "0.2"]
    (line,) = paths(svg, "line")
    ys = [y for _, y in points(band.get("d"))]
    y = points(line.get("d"))[0][1]
    assert min(ys) < y < max(ys)
    assert len(ys) == 4


def test_stacked_parts_add_up():
    parts = [RunCurve("a", "#111111", [1.0, 1.0]), RunCurve("b", "#222222", [2.0, None])]
    svg = drawn(Panel("parts", [0, 1], parts, stacked=True))
    low, high = (points(p.get("d")) for p in paths(svg, "line"))
    assert (HEIGHT - BOTTOM - high[0][1]) == pytest.approx(3 * (HEIGHT - BOTTOM - low[0][1]), abs=0.5)
    assert high[1][1] == low[1][1]
    assert [t.text for t in svg.iter("text")][-2:] == ["a", "b"]


def test_a_value_beyond_the_axis_is_a_triangle_at_its_edge():
    panel = Panel("KL", [0, 1, 2], [RunCurve("K3", "#123456", [0.1, 1e9, 0.2], points=True)], top=0.5)
    svg = drawn(panel)
    dots = [p for p in svg.iter("path") if p.find("title") is not None]
    assert [p.find("title").text for p in dots] == ["step 0: 0.1", "step 1: 1 billion", "step 2: 0.2"]
    assert ["a2.6" in p.get("d") for p in dots] == [True, False, True]
    assert all(TOP - 1 <= y <= HEIGHT for p in dots for _, y in points(p.get("d")))


def test_labels_are_moved_apart_and_stay_on_the_paper():
    curves = [
        RunCurve(name, "#123456", [0.0, value]) for name, value in (("a", 0.0), ("b", 0.001), ("c", 1.0))
    ]
    svg = drawn(Panel("three", [0, 1], curves))
    ends = [t for t in svg.iter("text") if t.get("class") == "end"]
    ys = sorted(float(t.get("y")) for t in ends)
    assert [t.text for t in ends] == ["c 1", "b 0.001", "a 0"]
    assert all(b - a >= 15.9 for a, b in pairwise(ys))
    assert ys[-1] <= HEIGHT - BOTTOM + 5


def test_what_is_told_without_seeing_it():
    panel = Panel(
        "KL <per> token",
        [10, 20, 30],
        [RunCurve("exact", "#1", [0.1, 0.4, 0.2]), RunCurve("K3", "#2", [None, None, None])],
        marks=[("set to 0.04", 0.04)],
    )
    said = described(panel)
    assert said == (
        "KL <per> token, by step. exact: 0.1 at step 10, 0.2 at step 30, at most 0.4 at step 20. K3: no "
        "value. A line marks set to "
        "0.04."
    )
    svg = drawn(panel)
    assert (svg.get("role"), svg.get("aria-label")) == ("img", said)
    assert len(paths(svg, "mark")) == 1


@pytest.mark.parametrize("values", [[0.0, 0.0], [-0.3, -0.1], [-300.0, 20.0], [1e-9, 2e-9], [1e12, 2e12]])
def test_any_range_has_an_axis(values):
    svg = drawn(Panel("x", [0, 1], [RunCurve("", "#1", values)]))
    for _, y in points(paths(svg, "line")[0].get("d")):
        assert TOP <= y <= HEIGHT - BOTTOM
    assert 2 <= len(paths(svg, "grid")) <= 8


def test_a_gap_in_one_end_of_a_band_is_a_gap_of_the_band():
    band = RunCurve("", "#123456", [0.5] * 4, [0.1, None, 0.1, 0.1], [0.9, 0.9, 0.9, 0.9])
    svg = drawn(Panel("KL", [0, 1, 2, 3], [band]))
    (area,) = [p for p in svg.iter("path") if p.get("fill-opacity") == "0.2"]
    assert area.get("d").count("Z") == 2
    assert len(points(area.get("d"))) == 2 + 4


def test_curves_with_steps_of_their_own_on_a_logarithmic_axis():
    curves = [
        RunCurve("a", "#123456", [1.0, 100.0]),
        RunCurve("b", "#654321", [0.0, 10.0, 10.0], steps=[0, 5, 20]),
    ]
    svg = drawn(Panel("KL", [0, 10], curves, logarithmic=True))
    (x0, y0), (x1, y1) = points(paths(svg, "line")[0].get("d"))
    (x2, y2), (x3, y3) = points(paths(svg, "line")[1].get("d"))  # 0 is not on the axis
    assert (y0, y1) == (HEIGHT - BOTTOM, TOP)
    assert y2 == y3 == pytest.approx((y0 + y1) / 2, abs=0.11)
    assert x2 - x0 == pytest.approx((x3 - x0) / 4, abs=0.11)
    assert x1 - x0 == pytest.approx((x3 - x0) / 2, abs=0.11)
    assert {"1", "10", "100"} <= {t.text for t in svg.iter("text")}
