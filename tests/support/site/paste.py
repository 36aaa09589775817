"""The page that audits a pasted loss, and the one that reports on a pasted log, as tests drive them."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

PAGE = "book/paste.html"
LOG_PAGE = "book/part9_frameworks/03_reading_your_run.html"
SITE = Path(__file__).resolve().parents[3] / "_build" / "html"
HOW = "Python for the browser was not fetched: .venv/bin/python book/_ext/kl_npm.py, then make book"
DATA = "return {...document.querySelector('#verdict').dataset}"
BUSY = "return document.querySelector('.kl-paste').hasAttribute('aria-busy')"


def needs_python() -> None:
    """Skip what no page can do that was built without Python for the browser."""
    if not (SITE / "_python" / "pyodide.asm.wasm").is_file():
        pytest.skip(HOW)


def address(base: str, code: str, **fields: str) -> str:
    """The link that opens the page with some code and runs it."""
    text = base64.urlsafe_b64encode(code.encode()).decode().rstrip("=")
    given = {"code": text, "run": "1", **{name: value for name, value in fields.items() if value}}
    return f"{base}/{PAGE}#{urlencode(given)}"


def answered(session: Any, seconds: float = 60) -> dict[str, str]:
    """What the element of the verdict carries, once it is there; the picture may still be drawn."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data: dict[str, str] = session.execute_script(DATA)
        if data:
            return data
        time.sleep(0.05)
    state = session.execute_script("return document.querySelector('.kl-state').textContent")
    raise AssertionError(f"no verdict after {seconds} s; the page says {state!r}")


def finished(session: Any, seconds: float = 60) -> dict[str, str]:
    """The same, once the picture is drawn too."""
    data = answered(session, seconds)
    end = time.monotonic() + seconds
    while session.execute_script(BUSY):
        assert time.monotonic() < end, "the picture never came"
        time.sleep(0.05)
    return data


def submit(session: Any) -> None:
    """Click the form's button, wherever on the page it is: the page itself scrolls smoothly."""
    button = session.find_element("css selector", ".kl-paste [type=submit]")
    session.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    button.click()


def ask(session: Any, base: str, code: str, seconds: float = 60, **fields: str) -> dict[str, str]:
    """Paste code, run it, and wait: in the page that is open, so that Python is loaded once."""
    there = address(base, code, **fields)
    if session.current_url.startswith(f"{base}/{PAGE}"):
        session.execute_script(
            "document.querySelector('#verdict').replaceChildren();"
            "for (const key of Object.keys(document.querySelector('#verdict').dataset))"
            " delete document.querySelector('#verdict').dataset[key];"
            "if (location.hash === arguments[0]) dispatchEvent(new HashChangeEvent('hashchange'));"
            "else location.hash = arguments[0];",
            "#" + there.partition("#")[2],
        )
    else:
        session.get(there)
    return finished(session, seconds)


def report(
    session: Any, base: str, text: str = "", file: Path | None = None, **fields: str
) -> dict[str, str]:
    """Paste a log, or choose a file, and wait for its report: in the page that is open if it is that one."""
    if session.current_url.partition("#")[0] != f"{base}/{LOG_PAGE}":
        session.get(f"{base}/{LOG_PAGE}")
    session.execute_script(
        "const form = document.querySelector('.kl-paste form');"
        "form.reset();"
        "for (const [name, value] of Object.entries(arguments[0])) form.elements[name].value = value;",
        {"log": text, **fields},
    )
    if file is not None:
        session.find_element("css selector", ".kl-paste [name=file]").send_keys(str(file))
    submit(session)
    return finished(session)
