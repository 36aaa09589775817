"""Time to first view of the built pages: when a browser first shows text, from a server on the same machine.

Each load is a first one, with an empty cache. Without a browser or built pages it says so and goes on.
"""

from __future__ import annotations

import importlib
import platform
import statistics
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
LOADS = 5
PAINTED = """
const done = arguments[arguments.length - 1];
const look = () => {
  const [entry] = performance.getEntriesByName("first-contentful-paint");
  if (entry) done(entry.startTime); else setTimeout(look, 20);
};
look();
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """No line on stderr for each file."""


def largest_chapter(site: Path) -> str:
    """Path of the chapter whose own HTML is the longest."""
    return max(site.glob("book/part*/*.html"), key=lambda p: p.stat().st_size).relative_to(site).as_posix()


def first_views(session: Any, base: str, page: str) -> list[float]:
    """Milliseconds to the first contentful paint, once for each of LOADS loads."""
    found = []
    for _ in range(LOADS):
        session.execute_cdp_cmd("Network.clearBrowserCache", {})
        session.get(f"{base}/{page}")
        found.append(float(session.execute_async_script(PAINTED)))
    return found


def main() -> None:
    """Print the median for the first page and for the longest chapter."""
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    printing = importlib.import_module("kl_print")
    browser = printing.find_browser()
    if browser is None or not (SITE / "index.html").is_file():
        print(f"\ntime to first view: not measured ({printing.HOW_TO_GET}; `make book` builds the pages)")
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    print(f"\nfirst view, empty cache, median of {LOADS} loads on {platform.machine()}, headless Chromium")
    try:
        with printing.chromium(browser) as session:
            for page in ("book/intro.html", largest_chapter(SITE)):
                size = (SITE / page).stat().st_size / 1000
                views = first_views(session, base, page)
                print(f"{page:<62}{size:>6.0f} kB{statistics.median(views):>8.0f} ms")
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
