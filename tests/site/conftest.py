"""The built pages on a local server, and one browser for all modules; a module finds it as it was started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.site import browser as browsers

HERE = Path(__file__).resolve().parent
SITE = HERE.parents[1] / "_build" / "html"


@pytest.fixture(scope="session")
def base() -> Iterator[str]:
    with browsers.served(SITE) as address:
        yield address


@pytest.fixture(scope="session")
def started() -> Iterator[Any]:
    with browsers.opened() as browser:
        yield browser


@pytest.fixture(scope="module")
def session(started: Any) -> Any:
    browsers.restore(started)
    return started


@pytest.fixture(scope="module")
def without_formulas(started: Any) -> Any:
    """A browser that leaves formulas as they are written."""
    browsers.restore(started, blocked=["*mathjax*"])
    return started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module goes to one process, where its page is open; pages of test_site.py go to either, last."""
    mine = [item for item in items if item.path.parent == HERE]
    for item in mine:
        if item.path.name != "test_site.py":
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    mine.sort(key=lambda item: (item.path.name == "test_site.py", item.path.name != "test_paste.py"))
    items[:] = [item for item in items if item.path.parent != HERE] + mine
