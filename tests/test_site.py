"""The built pages, as files and as a reader's browser shows them.

Without a browser the second half is skipped, in one line that says how to get one; with CI=1 it fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site import browser as browsers
from tests.site import pages

SITE = Path(__file__).resolve().parents[1] / "_build" / "html"
PAGES = sorted(str(path.relative_to(SITE)) for path in [*SITE.glob("*.html"), *SITE.glob("book/**/*.html")])


def test_the_book_is_built() -> None:
    assert (SITE / "index.html").is_file(), "no built book: run `make book` first"
    assert "book/intro.html" in PAGES


def test_no_internal_link_or_anchor_is_broken() -> None:
    assert pages.broken_links(SITE) == []


def test_no_page_loads_anything_from_elsewhere() -> None:
    assert pages.outside_loads(SITE) == []


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    try:
        with browsers.browsing() as opened:
            yield opened
    except FileNotFoundError as error:
        if os.environ.get("CI") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with browsers.served(SITE) as address:
        yield address


@pytest.mark.parametrize("page", PAGES)
def test_page_in_a_browser(session: Any, base: str, page: str) -> None:
    searching = page == "search.html"
    assert browsers.visit(session, base, page + "?q=divergence" * searching) == []
    if searching:
        from selenium.webdriver.support.ui import WebDriverWait

        found = "return document.querySelectorAll('#search-results li a').length"
        assert WebDriverWait(session, 20).until(lambda s: s.execute_script(found)) >= 1
