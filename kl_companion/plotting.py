"""One figure style for the whole book, drawn for a light and a dark page, a wide and a narrow screen.

Needs the extra `plots` (matplotlib, seaborn); importing this module does not. A drawing function is called
once per width and must therefore only draw; the dark variant is the light one with the ink and the grid lines
exchanged, and each color lightened until words can be read in it. Colors and markers belong to names, not to
positions: `k1` looks the same in every figure, and a marker and a line style say again what the color says.
"""

from __future__ import annotations

import base64
import html
import io
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from kl_companion.checks import unknown_name

# Each color reaches a contrast of 3:1 against a white page; `on_dark` has those for a nearly black one.
PALETTE: dict[str, str] = {
    "k1": "#0072b2",
    "k2": "#d55e00",
    "k3": "#1f9e78",
    "k3_plus_plus": "#b51cf0",
    "k4": "#d92b4e",
    "k5": "#9a7d0a",
    "k_lambda": "#8d6e63",
    "kf_plus_plus": "#6a5acd",
    "reverse_kl": "#a6426a",
    "forward_kl": "#4f6fd6",
    "jensen_shannon": "#5f8f1f",
    "squared_hellinger": "#a8662d",
    "pearson": "#9c4dcc",
    "neyman": "#2f8a8a",
    "total_variation": "#6f7f3f",
    "amari_alpha": "#c24d8f",
    "exact": "#7a8590",
    # forms of a top-k divergence: the tail of the first is K3++, that of the last K4
    "bregman": "#a834dd",
    "generic": "#8c7a1b",
    "truncated": "#7d6a5f",
    "truncated_bregman": "#5b7f86",
    "sampled": "#1a7fb8",
    "published": "#d43d5c",
}
_FALLBACK = ("#3f7f9f", "#b3541e", "#3c8d5a", "#a0568f", "#8a7433", "#6b74c9")
_FAMILY = "Source Sans Pro"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
_LINES = ("-", "--", "-.", ":")
_LABELS = {
    "k_lambda": "Kλ",
    "kf_plus_plus": "Kf++",
    "bregman": "Bregman form",
    "generic": "generic form",
    "published": "published form",
    "truncated_bregman": "truncated, Bregman head",
    "reverse_kl": "reverse KL",
    "forward_kl": "forward KL",
    "jensen_shannon": "Jensen–Shannon",
    "squared_hellinger": "squared Hellinger",
    "pearson": "Pearson χ²",
    "neyman": "Neyman χ²",
    "amari_alpha": "α-divergence",
}
_INK = {"light": ("#1f2933", "#d5dbe1"), "dark": ("#e6e9ec", "#3d4752")}
_DARK_PAGE = (0x14 / 255, 0x18 / 255, 0x1D / 255)
_NARROW_INCHES = 4.6  # at this width, text of 12 points is 12 pixels high on a telephone
_TALL_INCHES = 5.5
_LEGEND_POINTS = 11


def color(name: str) -> str:
    """The color of an estimator or a divergence, as `#rrggbb`.

    Args:
        name: A registered name; any other name gets a color that depends on the name alone.
    """
    return PALETTE.get(name) or _FALLBACK[zlib.crc32(name.encode()) % len(_FALLBACK)]


def style(name: str) -> dict[str, Any]:
    """Keyword arguments for `Axes.plot`: color, marker, line style and label of a name."""
    known = list(PALETTE)
    place = known.index(name) if name in PALETTE else zlib.crc32(name.encode())
    if name == "exact":  # the truth is a plain line without markers
        return {"color": color(name), "marker": "", "linestyle": "-", "label": label(name)}
    return {
        "color": color(name),
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _LINES[(place + place // len(_MARKERS)) % len(_LINES)],
        "label": label(name),
    }


def label(name: str) -> str:
    """The text that stands for a name in figures: `k3_plus_plus` is K3++."""
    if name in _LABELS:
        return _LABELS[name]
    if name[:1] == "k" and name[1:2].isdigit():
        return "K" + name[1:].replace("_plus", "+").replace("_", " ")
    return name.replace("_", " ")


def legend_below(axes: Any) -> None:
    """One legend for all panels, below them, where it hides no curve and may be as large as other text.

    Args:
        axes: What `figure` hands to its drawing function, one `Axes` or a list, with all curves drawn. A
            label that several panels have stands once.

    Raises:
        ValueError: nothing in the panels has a label.
    """
    panels = axes if isinstance(axes, list) else [axes]
    entries: dict[str, Any] = {}
    for axis in panels:
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    if not entries:
        got = "1 panel" if len(panels) == 1 else f"{len(panels)} panels"
        raise ValueError(f"{got} without a label, wanted at least one curve drawn with label=...")
    drawn = panels[0].figure
    for rows in range(1, len(entries) + 1):  # as few as fit the width
        legend = drawn.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=-(-len(entries) // rows),
            fontsize=_LEGEND_POINTS,
            columnspacing=1.4,
        )
        if legend.get_window_extent().width <= drawn.bbox.width or rows == len(entries):
            return
        legend.remove()


@dataclass(frozen=True)
class ThemedFigure:
    """A finished figure; notebooks show it, and the book's style sheet picks the variant that fits.

    Attributes:
        alt: Text for readers who do not see the figure.
        svg: Variant ("light-wide", "dark-wide", "light-narrow", "dark-narrow") to drawing.
        png: The light, wide variant in pixels, for print and for programs without HTML.
        caption: Text below the figure, or "".
    """

    alt: str
    svg: dict[str, bytes] = field(repr=False)
    png: bytes = field(repr=False)
    caption: str = ""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        images = []
        for variant, drawing in self.svg.items():
            theme, width = variant.split("-")
            # Outside the book there is no style sheet: the first variant shows there, on white.
            inline = "background:#fff" if variant == "light-wide" else "display:none"
            data = base64.b64encode(drawing).decode()
            images.append(
                f'<img class="kl-{theme} kl-{width}" style="{inline};max-width:100%" '
                f'alt="{html.escape(self.alt)}" src="data:image/svg+xml;base64,{data}">'
            )
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return {
            "text/html": f'<figure class="kl-figure">{"".join(images)}{caption}</figure>',
            "image/png": base64.b64encode(self.png).decode(),
            "text/plain": f"Figure: {self.alt}",
        }


def figure(
    draw: Callable[[Any], object],
    *,
    alt: str,
    size: tuple[float, float] = (6.4, 3.8),
    columns: int = 1,
    rows: int = 1,
    caption: str | None = None,
) -> ThemedFigure:
    """Draw a figure in every variant that a page may need.

    Args:
        draw: Called once per width with one `Axes`, or with a list of `rows * columns` of them, row by
            row. It must only draw.
        alt: What the figure shows, in a sentence.
        size: Width and height in inches of the whole figure on a wide screen.
        columns: Panels side by side on a wide screen; on a narrow one all stand one below the other.
        rows: Rows of panels on a wide screen.
        caption: Text below the figure.

    Returns:
        The figure; the same drawing gives the same bytes.

    Raises:
        ValueError: No text in `alt`, fewer than one column or row, or a size that is not positive.
        ImportError: matplotlib or seaborn is missing (extra `plots`).
    """
    if not alt.strip():
        raise ValueError("alt is empty: say in a sentence what the figure shows")
    if columns < 1:
        raise ValueError(f"columns is {columns}, wanted at least 1")
    if rows < 1:
        raise ValueError(f"rows is {rows}, wanted at least 1")
    if min(size) <= 0:
        raise ValueError(f"size is {size}, wanted positive inches (width, height)")
    panels, height = rows * columns, size[1]
    # a single panel that is tall has many rows: squeezed, their labels would lie on each other
    single = height if height > _TALL_INCHES else min(height, 4.2)
    narrow = (_NARROW_INCHES, height / rows * panels if panels > 1 else single)
    svg: dict[str, bytes] = {}
    png = b""
    for layout, inches, shape in (("wide", size, (rows, columns)), ("narrow", narrow, (panels, 1))):
        with _themed():
            drawn = _draw(draw, inches, shape)
            drawn.get_layout_engine().execute(drawn)
            drawn.set_layout_engine("none")  # a layout takes as long as a drawing: it is worked out once
            svg[f"light-{layout}"] = _as_svg(drawn)
            if layout == "wide":
                png = _as_png(drawn)
        svg[f"dark-{layout}"] = _darkened(svg[f"light-{layout}"])
    return ThemedFigure(alt=alt.strip(), svg=svg, png=png, caption=(caption or "").strip())


def typeface(weight: str) -> str:
    """File of one weight ("Regular", "It", "Semibold", "Bold") of the typeface that pages and figures share.

    Raises:
        ImportError: font-source-sans-pro is missing (extra `plots`).
        ValueError: the typeface has no such weight.
    """
    try:
        folder = files("font_source_sans_pro") / "files"
    except ImportError as error:
        raise ImportError(f"figures need {error.name}: pip install 'kl-companion[plots]'") from error
    found = {path.name.removeprefix("SourceSansPro-"): str(path) for path in folder.iterdir()}
    if f"{weight}.ttf" not in found:
        raise unknown_name("weight", weight, sorted(n[:-4] for n in found if n.endswith(".ttf")))
    return found[f"{weight}.ttf"]


def _themed() -> AbstractContextManager[None]:
    """Seaborn's style in the colors of the light theme, for the length of a with block."""
    try:
        import matplotlib.font_manager
        import seaborn
    except ImportError as error:
        raise ImportError(f"figures need {error.name}: pip install 'kl-companion[plots]'") from error
    fonts = matplotlib.font_manager.fontManager
    for file in (typeface("Regular"), typeface("Bold")):
        if file not in {font.fname for font in fonts.ttflist}:
            fonts.addfont(file)
    ink, grid = _INK["light"]
    settings = {
        **seaborn.plotting_context("notebook", font_scale=1.2),
        **seaborn.axes_style("ticks"),
        # The typeface of the pages, for what it lacks matplotlib's, and formulas as on the pages; all
        # come with packages, so that bytes do not depend on the machine
        "font.family": [_FAMILY, "DejaVu Sans"],
        "mathtext.fontset": "cm",
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), ink
        ),
        "axes.grid": True,
        "grid.color": grid,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "legend.frameon": False,
        "lines.markersize": 6,
        "svg.hashsalt": "kl_companion",
    }
    context: AbstractContextManager[None] = matplotlib.rc_context(settings)
    return context


def _draw(draw: Callable[[Any], object], inches: tuple[float, float], shape: tuple[int, int]) -> Any:
    """A figure that belongs to no window and no global state, filled by the caller's function."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # with this space a title stands nearer to its own panel than to the one above
    drawn = Figure(figsize=inches, layout=ConstrainedLayoutEngine(hspace=0.05))
    axes = [axis for row in drawn.subplots(*shape, squeeze=False) for axis in row]
    draw(axes[0] if len(axes) == 1 else axes)
    return drawn


def _as_svg(drawn: Any) -> bytes:
    """The drawing as it stands; `Figure.savefig` would draw it once more to work out its layout."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    target = io.BytesIO()
    FigureCanvasSVG(drawn).print_svg(target, metadata={"Date": None})
    return target.getvalue()


def _as_png(drawn: Any) -> bytes:
    """The drawing in pixels, on white."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    target = io.BytesIO()
    drawn.set(dpi=160, facecolor="white")
    FigureCanvasAgg(drawn).print_png(target, metadata={"Software": None})
    return target.getvalue()


def on_dark(light: str) -> str:
    """The same hue for a nearly black page: with white mixed in until words in it have a contrast of 4.5:1.

    Args:
        light: `#rrggbb`.
    """
    channels = [int(light[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    for share in range(0, 100, 5):
        mixed = [round(255 * (x + (1 - x) * share / 100)) / 255 for x in channels]
        if _luminance(mixed) + 0.05 >= 4.5 * (_luminance(_DARK_PAGE) + 0.05):
            break
    return "#" + "".join(f"{round(255 * x):02x}" for x in mixed)


def _luminance(channels: Sequence[float]) -> float:
    """Relative luminance of red, green and blue between 0 and 1, by the guidelines for readable pages."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return sum(share * x for share, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _darkened(drawing: bytes) -> bytes:
    """A drawing for the dark page: other ink and grid, lighter colors; all else reads on both pages."""
    for light, dark in zip(*_INK.values(), strict=True):
        drawing = drawing.replace(light.encode(), dark.encode())
    for light in {*PALETTE.values(), *_FALLBACK}:
        drawing = drawing.replace(light.encode(), on_dark(light).encode())
    return drawing
