"""Figures: every variant, the same bytes every time, colors that everybody can tell apart."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from typing import Any

import pytest

from kl_companion import plotting
from tests.support.data import data

DATA = data(__file__)


PAGES = {"light": (255, 255, 255), "dark": (20, 24, 29)}


def draw(axis: Any) -> None:
    axis.plot([0, 1, 2], [0, 1, 4], **plotting.style("k3"))
    axis.set_xlabel("log-ratio")
    axis.legend()


@pytest.fixture(scope="module")
def made() -> plotting.ThemedFigure:
    return plotting.figure(draw, alt='A "rising" curve', caption="a < b")


def rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def linear(channels: tuple[int, int, int]) -> list[float]:
    scaled = [c / 255 for c in channels]
    return [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in scaled]


def luminance(channels: tuple[int, int, int]) -> float:
    red, green, blue = linear(channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_four_variants_and_the_same_bytes(made: plotting.ThemedFigure) -> None:
    assert set(made.svg) == {"light-wide", "dark-wide", "light-narrow", "dark-narrow"}
    assert len(set(made.svg.values())) == 4
    again = plotting.figure(draw, alt='A "rising" curve', caption="a < b")
    assert again == made
    assert made.png.startswith(b"\x89PNG")


def test_variants_are_transparent_and_in_the_ink_of_their_theme(made: plotting.ThemedFigure) -> None:
    for theme, ink in (("light", "#1f2933"), ("dark", "#e6e9ec")):
        text = made.svg[f"{theme}-wide"].decode()
        assert ink in text
        assert plotting.color("k3") in text
        assert "fill: #ffffff" not in text
    assert "#1f2933" not in made.svg["dark-wide"].decode()


def test_the_dark_variant_is_what_would_be_drawn_in_dark_ink(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(axes: list[Any]) -> None:
        draw(axes[0])
        axes[0].axhline(1, color="gray", alpha=0.5)
        axes[1].scatter([0, 1], [1, 0], color=plotting.color("k1"), edgecolor="white")
        axes[1].set_title("β and $x^2$")
        axes[1].imshow([[0.0, 0.5], [0.25, 1.0]])

    recolored = plotting.figure(everything, alt="Much", columns=2).svg
    monkeypatch.setitem(plotting._INK, "light", plotting._INK["dark"])
    monkeypatch.setitem(plotting.PALETTE, "k1", plotting.on_dark(plotting.PALETTE["k1"]))
    drawn = plotting.figure(everything, alt="Much", columns=2).svg
    for layout in ("wide", "narrow"):
        assert anonymous(recolored[f"dark-{layout}"]) == anonymous(drawn[f"light-{layout}"])
        assert anonymous(recolored[f"light-{layout}"]) != anonymous(drawn[f"light-{layout}"])


def anonymous(drawing: bytes) -> str:
    """A drawing whose names of shapes, which hash their colors, are numbers in the order of appearance."""
    text = drawing.decode()
    names = dict.fromkeys(re.findall(r'id="([a-z][0-9a-f]{10})"', text))
    for number, name in enumerate(names):
        text = text.replace(name, f"shape-{number}")
    return text


def test_what_a_notebook_shows(made: plotting.ThemedFigure) -> None:
    bundle = made._repr_mimebundle_()
    assert set(bundle) == {"text/html", "image/png", "text/plain"}
    text = bundle["text/html"]
    assert text.count("<img") == 4
    assert text.count('alt="A &quot;rising&quot; curve"') == 4
    assert "<figcaption>a &lt; b</figcaption>" in text
    # without the book's style sheet one drawing shows, on white
    assert text.count("display:none") == 3
    assert re.search(r'class="kl-light kl-wide" style="background:#fff', text)


def test_panels_stand_side_by_side_or_one_below_the_other() -> None:
    seen: list[int] = []

    def two(axes: list[Any]) -> None:
        seen.append(len(axes))
        for axis in axes:
            axis.plot([0, 1], [1, 0])

    drawn = plotting.figure(two, alt="Two panels", columns=2, size=(8, 3))
    assert seen == [2, 2]
    size = {name: shape(svg) for name, svg in drawn.svg.items()}
    assert size["light-wide"] == (8 * 72, 3 * 72)
    assert size["light-narrow"] == (pytest.approx(4.6 * 72), 6 * 72)


@pytest.mark.parametrize(("height", "narrow"), [(3.8, 3.8), (5.0, 4.2), (7.0, 7.0)])
def test_a_tall_panel_keeps_its_rows_on_a_telephone(height: float, narrow: float) -> None:
    drawn = plotting.figure(lambda axes: axes.plot([0, 1]), alt="A panel", size=(7.4, height))
    assert shape(drawn.svg["light-narrow"]) == (pytest.approx(4.6 * 72), pytest.approx(narrow * 72))


def shape(svg: bytes) -> tuple[float, float]:
    found = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg.decode())
    assert found
    return float(found[1]), float(found[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alt": " "}, "alt is empty"),
        ({"alt": "x", "columns": 0}, "columns is 0"),
        ({"alt": "x", "rows": 0}, "rows is 0"),
        ({"alt": "x", "size": (0, 3)}, r"size is \(0, 3\)"),
    ],
)
def test_bad_input_is_refused_before_anything_is_drawn(options: dict[str, Any], message: str) -> None:
    def never(axis: Any) -> None:
        raise RuntimeError("drew")

    with pytest.raises(ValueError, match=message):
        plotting.figure(never, **options)


def test_every_color_can_be_read_on_both_pages() -> None:
    for name, color in [*plotting.PALETTE.items(), *((c, c) for c in plotting._FALLBACK)]:
        for theme, least, shown in (("light", 3, color), ("dark", 4.5, plotting.on_dark(color))):
            low, high = sorted([luminance(rgb(shown)), luminance(PAGES[theme])])
            contrast = (high + 0.05) / (low + 0.05)
            assert contrast >= least, f"{name} on {theme}: {contrast:.2f}"


def test_a_color_of_the_dark_page_is_no_lighter_than_it_must_be() -> None:
    assert plotting.on_dark("#f0c040") == "#f0c040"
    assert plotting.on_dark("#000000") == "#808080"  # 4.51:1 against the page; the step before has 3.76:1


def test_no_color_of_a_dark_page_is_one_of_a_light_page() -> None:
    """They are exchanged one after the other: a color that is one of the others would be exchanged twice."""
    light = {*plotting.PALETTE.values(), *plotting._FALLBACK}
    assert not light & {plotting.on_dark(color) for color in light if plotting.on_dark(color) != color}


def test_no_two_names_look_alike() -> None:
    colors = list(plotting.PALETTE.values())
    assert len(set(colors)) == len(colors)
    looks = [(s["marker"], s["linestyle"]) for s in map(plotting.style, plotting.PALETTE)]
    assert len(set(looks)) == len(looks)


def test_the_main_estimators_differ_for_the_color_blind() -> None:
    # Machado, Oliveira and Fernandes (2009), severity 1, in linear RGB
    kinds = {
        "protan": (
            (0.152286, 1.052583, -0.204868),
            (0.114503, 0.786281, 0.099216),
            (-0.003882, -0.048116, 1.051998),
        ),
        "deutan": (
            (0.367322, 0.860646, -0.227968),
            (0.280085, 0.672501, 0.047413),
            (-0.011820, 0.042940, 0.968881),
        ),
    }
    for kind, matrix in kinds.items():
        seen = {}
        for name in ("k1", "k2", "k3", "k3_plus_plus", "k4"):
            channels = linear(rgb(plotting.color(name)))
            mixed = [sum(m * c for m, c in zip(row, channels, strict=True)) for row in matrix]
            seen[name] = lab([min(max(c, 0.0), 1.0) for c in mixed])
        for a, b in itertools.combinations(seen, 2):
            distance = sum((x - y) ** 2 for x, y in zip(seen[a], seen[b], strict=True)) ** 0.5
            assert distance > 10, f"{a} and {b} differ by {distance:.1f} for {kind}opes"


def lab(channels: list[float]) -> tuple[float, float, float]:
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(m * c for m, c in zip(row, channels, strict=True)) for row in rows]
    x, y, z = (
        (v / w) ** (1 / 3) if v / w > 0.008856 else 7.787 * v / w + 16 / 116
        for v, w in zip(xyz, (0.9505, 1.0, 1.089), strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("shape", [(1, 2), (2, 1)])
def test_one_legend_stands_below_all_panels_and_fits(shape: tuple[int, int]) -> None:
    def draw_many(axes: list[Any]) -> None:
        for axis in axes:
            for name in ("k1", "k2", "k3_plus_plus", "jensen_shannon", "squared_hellinger", "pearson"):
                axis.plot([0, 1], [0, len(name)], **plotting.style(name))
            axis.set_xlabel("updates")
        axes[1].plot([0, 1], [2, 2], label="only here")
        plotting.legend_below(axes)

    with plotting._themed():
        drawn = plotting._draw(draw_many, (4.6, 6.0), shape)
        drawn.draw_without_rendering()
    (legend,) = drawn.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["K1", "K2", "K3++", "Jensen–Shannon", "squared Hellinger", "Pearson χ²", "only here"]
    place = legend.get_window_extent()
    assert drawn.bbox.x0 <= place.x0 < place.x1 <= drawn.bbox.x1
    assert drawn.bbox.y0 <= place.y0
    assert place.y1 <= min(axis.get_tightbbox().y0 for axis in drawn.axes)
    assert len({round(text.get_window_extent().y0) for text in legend.get_texts()}) < len(texts)  # in columns


def test_unknown_names_get_a_look_that_depends_on_the_name_alone() -> None:
    assert plotting.style("my_estimator") == plotting.style("my_estimator")
    assert plotting.color("my_estimator") in plotting._FALLBACK
    assert plotting.label("my_estimator") == "my estimator"


@pytest.mark.parametrize(("name", "text"), DATA["labels"])
def test_labels(name: str, text: str) -> None:
    assert plotting.label(name) == text


def test_importing_it_loads_no_plotting_library() -> None:
    code = (
        "import sys, kl_companion.plotting; print([m for m in ('matplotlib', 'seaborn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
