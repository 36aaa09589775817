"""The whole book as one PDF: Sphinx's singlehtml, printed by a headless Chromium.

Run by `make print`. Also the one place that knows how to find a browser, for the tests of the built pages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW_TO_GET = (
    "no browser found: install chromium (Debian: apt-get install chromium chromium-driver), or set CHROME"
)
# No updates, no reports, no sync: the browser talks to the pages and to nobody else.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
)


def find_browser() -> str | None:
    """Path of a Chromium: the environment variable CHROME, else the first known name on PATH.

    Raises:
        FileNotFoundError: CHROME is set, but names no program.
    """
    named = os.environ.get("CHROME")
    if named:
        found = shutil.which(named)
        if found is None:
            raise FileNotFoundError(f"CHROME is {named!r}, which is no program: unset it or name a Chromium")
        return found
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def install_browser() -> str | None:
    """Find a browser; where there is none and this process is root on Debian or Ubuntu, install it."""
    found = find_browser()
    if found or os.name != "posix" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return found
    print("installing chromium from the distribution ...", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "chromium-driver"],
    ):
        if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
            return None
    return find_browser()


def printable(page: Path) -> Path:
    """Copy the single page to the top of its folder, where its links start, with everything folded opened."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<details(?![^>]*\bopen\b)", "<details open", text)
    text = re.sub(r'<html([^>]*?) data-theme="[^"]*"', r"<html\1", text)
    text = text.replace("<html", '<html data-theme="light" data-mode="light"', 1)
    text = re.sub(r"<script[^>]*togglebutton[^>]*></script>", "", text)
    # on the single page a chapter's title is a heading of the second level
    style = "<style>@media print { .bd-article h2 { break-before: page; border-top: 0 } }</style>"
    text = text.replace("</head>", f"{style}</head>", 1)
    target = page.parents[1] / "print.html"
    target.write_text(text, encoding="utf-8")
    return target


def main() -> int:
    """Build, print, say where the file is."""
    browser = install_browser()
    if browser is None:
        print(HOW_TO_GET, file=sys.stderr)
        return 1
    builder = [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "--builder", "singlehtml"]
    print("==> Writing the book as one page", flush=True)
    code = subprocess.run([*builder, "-n", "-W", "--keep-going"], cwd=ROOT, check=False).returncode
    if code:
        return code
    page = printable(ROOT / "_build" / "singlehtml" / "book" / "intro.html")
    target = ROOT / "_build" / "kl-book.pdf"
    unfinished = target.with_suffix(".part.pdf")
    print("==> Printing it", flush=True)
    subprocess.run(
        [
            browser,
            *FLAGS,
            "--virtual-time-budget=60000",
            "--no-pdf-header-footer",
            f"--print-to-pdf={unfinished}",
            page.as_uri(),
        ],
        stderr=subprocess.DEVNULL,
        timeout=300,
        check=True,
    )
    if not unfinished.is_file() or unfinished.stat().st_size < 10_000:
        print(f"{browser} wrote no PDF", file=sys.stderr)
        return 1
    os.replace(unfinished, target)
    print(f"==> The book is at {target.relative_to(ROOT)} ({target.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
