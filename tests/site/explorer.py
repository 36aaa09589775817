"""Driving the explorer's page in a browser."""

from __future__ import annotations

from typing import Any

PAGE = "book/explorer.html"


def open_page(session: Any, base: str, link: str = "") -> None:
    session.get("about:blank")  # a change of the part behind # alone would load nothing
    session.get(f"{base}/{PAGE}{link}")
    ready(session)


def ready(session: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    done = "return document.querySelector('.kl-explorer').dataset.ready === 'yes'"
    WebDriverWait(session, 30).until(lambda s: s.execute_script(done))
    settle(session)


def settle(session: Any) -> None:
    """Wait for two frames: what a control changed is computed in the next one."""
    session.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
    )
