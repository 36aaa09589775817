"""The book as two PDFs, whole and to read, and its cheat sheet as one page, printed by a headless Chromium.

Run by `make print`; a file is checked before it takes the place of an older one. Also the one place that
knows how to find a browser, for the tests of the built pages.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import kl_citation
import kl_pdf
import kl_single

from kl_book.file_lock import exclusive_lock

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW_TO_GET = (
    "no browser found: install chromium (Debian: apt-get install chromium chromium-driver), or set CHROME"
)
WIDTH_MM = 174  # of the text on a page of A4; kl_print.css has the margins
PASSES = 4
SHEET = "book/cheat_sheet"
SIZES_PT = (8.0, 7.6, 7.2, 6.8, 6.4, 6.0)  # of the cheat sheet; smaller cannot be read
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
    """Find a browser; where there is none and this process is root on Debian or Ubuntu, install it.

    One process at a time: two that install disturb each other, and one that looks meanwhile finds half of it.
    """
    if os.name != "posix":
        return find_browser()
    lock = Path(tempfile.gettempdir()) / f"kl-browser-{os.getuid()}.lock"
    with exclusive_lock(
        lock, lambda: print("another process looks for a browser ...", file=sys.stderr, flush=True)
    ):
        found = find_browser()
        if found or os.geteuid() != 0 or shutil.which("apt-get") is None:
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


def title_page(cited: dict[str, Any], logo: Path) -> str:
    """The first page: logo, title, what the book is, version, license."""
    title, _, subtitle = cited["title"].partition("? ")
    text = logo.read_text(encoding="utf-8")
    return (
        f'<div class="kl-logo">{text[text.index("<svg") :]}</div>'
        f'<p class="kl-title">{title}?</p><p class="kl-subtitle">{subtitle}</p>'
        f"<p>{', '.join(author['name'] for author in cited['authors'])}</p>"
        f"<p>Version {cited['version']}, {cited['date-released']}</p>"
        f'<p class="kl-abstract">{cited["abstract"]}</p>'
        "<p><small>Text, figures and tables: CC BY 4.0. Code: MIT. In print the ledger has a line for each "
        "statement; its evidence, code behind figures, listings of the source and what is interactive are "
        "on the pages of the book.</small></p>"
    )


@contextmanager
def chromium(browser: str) -> Iterator[Any]:
    """A driver of a headless Chromium; FileNotFoundError where its chromedriver is missing."""
    driver = shutil.which("chromedriver")
    if driver is None:
        raise FileNotFoundError(HOW_TO_GET)
    os.environ["SE_OFFLINE"] = "true"
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"):
        options.add_argument(flag)
    session = webdriver.Chrome(options=options, service=Service(driver))
    try:
        session.set_script_timeout(280)
        session.set_page_load_timeout(280)
        session.command_executor.client_config.timeout = 600
        yield session
    finally:
        session.quit()


def settle(session: Any) -> list[str]:
    """Wait until formulas are set, fit what is too wide, and say what is wrong with the page."""
    script = (Path(__file__).with_name("kl_print.js")).read_text(encoding="utf-8")
    session.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    size = {"width": round(WIDTH_MM / 25.4 * 96), "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    session.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return session.execute_async_script(script)


def write_pdf(session: Any, target: Path) -> None:
    """Print the page that the browser shows, with bookmarks; its style sheet says size and margins."""
    options = {
        "printBackground": True,
        "preferCSSPageSize": True,
        "generateDocumentOutline": True,
        "generateTaggedPDF": True,
        "transferMode": "ReturnAsStream",
    }
    stream = session.execute_cdp_cmd("Page.printToPDF", options)["stream"]
    with target.open("wb") as file:
        while True:
            piece = session.execute_cdp_cmd("IO.read", {"handle": stream, "size": 4_000_000})
            data = piece["data"]
            file.write(base64.b64decode(data) if piece.get("base64Encoded") else data.encode("latin-1"))
            if piece["eof"]:
                break
    session.execute_cdp_cmd("IO.close", {"handle": stream})


HEADINGS = "return [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((h) => h.textContent)"


def print_book(session: Any, site: Path, target: Path, *, reading: bool = False) -> list[str]:
    """Print the built pages, or (``reading``) those that one reads; what is wrong, one line each.

    It is printed until the page numbers of the contents, read off the print before, are its own.
    """
    title = title_page(kl_citation.cited(), ROOT / "book" / "_static" / "logo.svg")
    listed = kl_single.parts(ROOT / "_toc.yml")
    text, titles = kl_single.single_page(site, kl_single.reading(listed) if reading else listed, title)
    page = site.with_name("print.html")
    numbers: dict[str, int] = {}
    for _ in range(PASSES):  # each from a fresh page: a second print of one page may break it elsewhere
        page.write_text(kl_single.numbered(text, numbers), encoding="utf-8")
        session.get(page.as_uri())
        found = settle(session)
        write_pdf(session, target)
        before, numbers = numbers, kl_single.listed(text, kl_pdf.pages_of_anchors(target))
        if numbers == before:
            break
    else:
        found.append("the contents name other pages than those on which the chapters start")
    kl_pdf.mend_bookmarks(target, session.execute_script(HEADINGS))
    return found + kl_pdf.problems(target, titles)


def print_sheet(session: Any, site: Path, target: Path) -> list[str]:
    """Print the cheat sheet, as large as one page of A4 allows; what is wrong with it, one line each."""
    page = site.with_name("print-sheet.html")
    page.write_text(kl_single.sheet(site, SHEET), encoding="utf-8")
    session.get(page.as_uri())
    found = settle(session)
    for points in SIZES_PT:
        session.execute_script("document.body.style.setProperty('--kl-size', arguments[0] + 'pt')", points)
        write_pdf(session, target)
        if kl_pdf.pages(target) == 1:
            return found
    return [*found, f"the cheat sheet takes {kl_pdf.pages(target)} pages at {SIZES_PT[-1]} points: cut it"]


PRINTED: tuple[tuple[str, Callable[[Any, Path, Path], list[str]]], ...] = (
    ("kl-cheat-sheet", print_sheet),
    ("kl-reading", partial(print_book, reading=True)),
    ("kl-book", print_book),
)


def main() -> int:
    """Print book and cheat sheet, say where they are and what is wrong with them."""
    site = ROOT / "_build" / "html"
    if not (site / "index.html").is_file():
        print(f"{site} holds no built book: run `make book` first", file=sys.stderr)
        return 1
    browser = install_browser()
    if browser is None:
        print(HOW_TO_GET, file=sys.stderr)
        return 1
    status = 0
    with chromium(browser) as session:
        for name, printed in PRINTED:
            target = site.with_name(f"{name}.pdf")
            unfinished = site.with_name(f"{name}.part.pdf")
            print(f"==> Printing {target.name}", flush=True)
            found = printed(session, site, unfinished)
            for line in found:
                print(f"wrong in {target.name}: {line}", file=sys.stderr)
            if found:
                status = 1
                continue
            os.replace(unfinished, target)
            print(f"==> {target.relative_to(ROOT)}: {kl_pdf.summary(target)}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
