"""The pictures of README.md and of a report, taken of pages: `make pictures`. Few colors keep them small."""

from __future__ import annotations

import http.server
import io
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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
PASTED = {"paste": ("light", WIDTH, "form"), "paste_telephone": ("dark", 390, "#verdict")}
PASTE = """
const [theme, where, done] = arguments;
document.documentElement.dataset.theme = theme;
document.querySelector(".kl-paste [type=submit]").click();
const drawn = () => {
  if (!document.querySelector(".kl-field svg")) return setTimeout(drawn, 100);
  document.querySelector(`.kl-paste ${where}`).scrollIntoView({ block: "start", behavior: "instant" });
  return setTimeout(done, 400);
};
drawn();
"""
REPORTS = {"report": "light", "report_dark": "dark"}  # of the run of chapter 9.3
REPORT_HEIGHT = 890  # to the end of the first finding
BARE = 'document.head.insertAdjacentHTML("beforeend", "<style>* { scrollbar-width: none }</style>");'
SHOW = """
const [where, done] = arguments;
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
    session.execute_script(BARE)
    session.execute_async_script(SHOW, where)
    return Image.open(io.BytesIO(session.get_screenshot_as_png())).convert("RGB")


class Silent(http.server.SimpleHTTPRequestHandler):
    """Files, and no line for each."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of a folder while the with block lasts: a page opened as a file starts no Python."""
    handler = partial(Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def take_pasted(session: Any, base: str, theme: str, width: int, where: str) -> Image.Image:
    """The verdict on the first example."""
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 600}
    session.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    session.set_script_timeout(60)
    session.get(f"{base}/book/paste.html")
    session.execute_script(BARE)
    session.execute_async_script(PASTE, theme, where)
    return Image.open(io.BytesIO(session.get_screenshot_as_png())).convert("RGB")


def report(folder: Path) -> Path:
    """The page of the run that chapter 9.3 reads."""
    from kl_companion.frameworks.trl_example import train
    from kl_companion.monitor import KLMonitor, read_run, report_html

    monitor = KLMonitor(folder / "run", every=1, rows=None, model="TRL's toy")
    train(stock=True, steps=20, beta=0.1, per_device_train_batch_size=16, watch=monitor.attach)
    page = folder / "report.html"
    page.write_text(report_html(read_run(folder / "run")), encoding="utf-8")
    return page


def take_report(session: Any, page: Path, theme: str) -> Image.Image:
    """The top of a report, which asks the browser for the theme."""
    asked = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    size = {"width": 1000, "height": REPORT_HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    session.execute_cdp_cmd("Emulation.setEmulatedMedia", asked)
    session.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    session.get(page.as_uri())
    session.execute_script(BARE)
    return Image.open(io.BytesIO(session.get_screenshot_as_png())).convert("RGB")


def keep(picture: Image.Image, name: str, how: Image.Quantize = Image.Quantize.FASTOCTREE) -> None:
    """Write a picture with few colors, and say how large it is."""
    path = FOLDER / f"{name}.png"
    few = picture.quantize(COLORS, how, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path.relative_to(kl_print.ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def main() -> int:
    """Take all pictures and say how large they are."""
    browser = kl_print.install_browser()
    if browser is None:
        print(kl_print.HOW_TO_GET, file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    with kl_print.chromium(browser) as session:
        for name, (page, where, width) in SHOTS.items():
            keep(take(session, kl_print.ROOT / "_build" / "html", page, where, width), name)
        with served(kl_print.ROOT / "_build" / "html") as base:
            for name, (theme, width, where) in PASTED.items():
                keep(take_pasted(session, base, theme, width, where), name, Image.Quantize.MEDIANCUT)
        with tempfile.TemporaryDirectory() as folder:
            page_of_run = report(Path(folder))
            for name, theme in REPORTS.items():
                tinted = Image.Quantize.MEDIANCUT  # its tiles are nearly as bright as the page
                keep(take_report(session, page_of_run, theme), name, tinted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
