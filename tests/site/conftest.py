"""The built pages on a local server, and a browser as wide as a desktop: for modules that say no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.site import browser as browsers

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with browsers.served(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def session(base: str) -> Iterator[Any]:
    with browsers.opened() as opened:
        browsers.resize(opened, browsers.SIZES["desktop"])
        yield opened
