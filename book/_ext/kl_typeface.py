"""The typeface of the pages, which is that of the figures: Source Sans Pro, from the package that ships it.

Each weight is cut down to the characters that a page can need, a tenth of its bytes, and written as a web
font beside the style sheets. `kl.css` names the three files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

from kl_companion.plotting import typeface

WEIGHTS = ("Regular", "It", "Semibold")
# Latin with accents, Greek, punctuation, sub- and superscripts, letters and arrows, mathematics, marks
RANGES = (
    (0x20, 0x17F),
    (0x370, 0x3FF),
    (0x2010, 0x20BF),
    (0x2100, 0x21FF),
    (0x2200, 0x22FF),
    (0x25A0, 0x27BF),
)


def write(folder: Path) -> list[Path]:
    """Write the web fonts into a folder, and say which."""
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(flavor="woff", layout_features=["kern", "liga", "tnum", "sups", "subs"], hinting=False)
    written = []
    for weight in WEIGHTS:
        font = TTFont(typeface(weight), recalcTimestamp=False)
        cut = Subsetter(options)
        cut.populate(unicodes=[code for first, last in RANGES for code in range(first, last + 1)])
        cut.subset(font)
        font.flavor = "woff"
        written.append(folder / f"source-sans-{weight.lower()}.woff")
        font.save(written[-1])
    return written


def on_finished(app: Any, exception: Exception | None) -> None:
    """Put the fonts beside the style sheets of a built site."""
    if exception is None and app.builder.format == "html":
        write(Path(app.outdir) / "_static" / "fonts")
