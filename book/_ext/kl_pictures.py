"""The pictures of README.md, taken of the built pages: `make pictures`. Few colors keep them small."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

import kl_print

FOLDER = kl_print.ROOT / "book" / "_pictures"
WIDTH, HEIGHT = 1200, 760
COLORS = 128
# name: page, what to scroll to, width of the window
SHOTS: dict[str, tuple[str, str, int]] = {
    "first_page": ("book/intro.html", "h1", WIDTH),
    "figure": ("book/part4_vocabulary/02_top_k.html", "figure.kl-figure", WIDTH),
    "ledger": ("book/ledger.html", ".kl-ledger form", WIDTH),
    "telephone": ("book/part1_values_and_gradients/02_two_parts_of_a_gradient.html", "h1", 390),
}
SHOW = """
const [where, done] = arguments;
document.head.insertAdjacentHTML("beforeend", "<style>* { scrollbar-width: none }</style>");
const show = () => {
  if (where !== "h1") document.querySelector(where).scrollIntoView({ block: "center", behavior: "instant" });
  setTimeout(done, 400);
};
const set = window.MathJax && MathJax.startup && MathJax.startup.promise;
if (set) set.then(show); else show();
"""


def take(session: Any, site: Path, page: str, where: str, width: int) -> Image.Image:
    """One picture of a page, in the light theme, scrolled to an element."""
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 600}
    session.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    session.get((site / page).as_uri())
    session.execute_script("document.documentElement.dataset.theme = 'light'")
    session.execute_async_script(SHOW, where)
    return Image.open(io.BytesIO(session.get_screenshot_as_png())).convert("RGB")


def main() -> int:
    """Take all pictures and say how large they are."""
    browser = kl_print.install_browser()
    if browser is None:
        print(kl_print.HOW_TO_GET, file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    with kl_print.chromium(browser) as session:
        for name, (page, where, width) in SHOTS.items():
            picture = take(session, kl_print.ROOT / "_build" / "html", page, where, width)
            path = FOLDER / f"{name}.png"
            few = picture.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            few.save(path, optimize=True)
            print(f"{path.relative_to(kl_print.ROOT)}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
