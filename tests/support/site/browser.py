"""A headless Chromium on a local server, and the questions that are put to each page."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.site import accessibility

HERE = Path(__file__).resolve().parent
SIZES = {"phone": 390, "desktop": 1300}
TABS = 320  # milliseconds; the theme makes boxes that scroll reachable by keyboard 300 after the last change
FEW = 12  # of like things, which are left for the questions about looks


def printing() -> ModuleType:
    """book/_ext/kl_print.py, which knows how to find a browser."""
    path = HERE.parents[2] / "book" / "_ext" / "kl_print.py"
    spec = importlib.util.spec_from_file_location("kl_print", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Quiet(SimpleHTTPRequestHandler):
    """Files over one connection; what all pages share is asked for, and compiled, once."""

    protocol_version = "HTTP/1.1"

    def end_headers(self) -> None:
        """Let the browser keep what it has."""
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()

    def do_GET(self) -> None:
        """The files, and an empty answer for the icon that a browser asks for where a page names none."""
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(site: Path, handler: type[Quiet] = Quiet) -> Iterator[str]:
    """The address under which a folder is served while the with block lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def browsing() -> Iterator[Any]:
    """A Selenium driver that reaches no host but this one; FileNotFoundError says how to get a browser."""
    tool = printing()
    browser, driver = tool.install_browser(), shutil.which("chromedriver")
    if browser is None or driver is None:
        raise FileNotFoundError(tool.HOW_TO_GET)
    os.environ["SE_OFFLINE"] = "true"
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (
        *tool.FLAGS,
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        "--hide-scrollbars",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=Service(driver))
    try:
        session.set_script_timeout(60)
        yield session
    finally:
        session.quit()


@contextmanager
def opened() -> Iterator[Any]:
    """What `browsing` gives, or a skipped test that says how to get a browser; with CI=1 a failed one."""
    try:
        with browsing() as session:
            yield session
    except FileNotFoundError as error:
        if os.environ.get("CI") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


def restore(session: Any, blocked: Sequence[str] = ()) -> None:
    """Take back what a module may have set: width, media, what pages have stored, and what is not loaded."""
    if (address := session.current_url).startswith("http"):
        storage = {"origin": "/".join(address.split("/")[:3]), "storageTypes": "local_storage"}
        session.execute_cdp_cmd("Storage.clearDataForOrigin", storage)
    session.get("about:blank")
    resize(session, SIZES["desktop"])
    session.execute_cdp_cmd("Network.enable", {})
    session.execute_cdp_cmd("Network.setBlockedURLs", {"urls": [*blocked]})
    session.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def visit(session: Any, base: str, page: str) -> list[str]:
    """Load a page once and ask it everything, in both themes and at both widths.

    Returns:
        One line for each thing that is wrong.
    """
    from selenium.webdriver.support.ui import WebDriverWait

    session.get_log("performance")
    session.get_log("browser")
    resize(session, SIZES["desktop"])
    session.get(f"{base}/{page}")
    WebDriverWait(session, 10, poll_frequency=0.05).until(  # the first page leads to another
        lambda s: not s.find_elements("css selector", "meta[http-equiv=Refresh]")
    )
    session.execute_script((HERE / "checks.js").read_text(encoding="utf-8"))
    session.execute_async_script("klSettle(arguments[arguments.length - 1])")
    problems = [f"{p}" for p in session.execute_script("return klOnce()")]
    session.execute_script("klPlainCode()")
    problems += layout(session, "desktop") + layout(session, "phone")
    session.execute_script("klThin(arguments[0])", FEW)
    problems += looks(session, "phone")
    accessibility.load(session)
    session.execute_async_script("klStill(...arguments)", TABS)
    problems += [f"phone: {problem}" for problem in accessibility.violations(session, accessibility.BY_WIDTH)]
    problems += looks(session, "desktop") + accessibility.violations(session)
    accessibility.only_marked(session)
    # each width and each theme once, for klLook has measured all four
    problems += colors(session, "desktop", "dark") + colors(session, "phone", "light")
    problems += [f"console: {m['message']}" for m in session.get_log("browser") if m["level"] == "SEVERE"]
    problems += [f"request to the outside: {url}" for url in requests(session) if not inside(url, base)]
    return problems


def layout(session: Any, width: str) -> list[str]:
    """What is wider than the page, or cut, at a width of SIZES."""
    resize(session, SIZES[width])
    return [f"{width}: {problem}" for problem in session.execute_script("return klLayout()")]


def looks(session: Any, width: str) -> list[str]:
    """What a reader does not see well in one of both themes, at a width of SIZES."""
    resize(session, SIZES[width])
    problems = []
    for theme in ("light", "dark"):
        session.execute_script("klTheme(arguments[0])", theme)
        found = session.execute_script("return klLook(arguments[0])", theme)
        problems += [f"{width}, {theme}: {problem}" for problem in found]
    return problems


def colors(session: Any, width: str, theme: str) -> list[str]:
    """What axe-core says about the marked texts at a width of SIZES in a theme."""
    resize(session, SIZES[width])
    session.execute_script("klTheme(arguments[0])", theme)
    found = accessibility.violations(session, accessibility.BY_COLOR)
    return [f"{width}, {theme}: {problem}" for problem in found]


def resize(session: Any, width: int) -> None:
    if getattr(session, "width", None) == width:  # it would lay out the page once more
        return
    session.width = width
    session.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )


def requests(session: Any) -> list[str]:
    """Addresses that the browser asked for since the log was last read."""
    events = (json.loads(entry["message"])["message"] for entry in session.get_log("performance"))
    return sorted(
        {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    )


def inside(url: str, base: str) -> bool:
    return url.startswith((base + "/", "data:", "blob:", "chrome:", "about:"))
