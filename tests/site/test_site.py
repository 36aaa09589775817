"""The built pages, as files and as a reader's browser shows them; axe-core finds nothing on any of them.

Without a browser the second half is skipped, in one line that says how to get one; with CI=1 it fails.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.site import browser as browsers
from tests.support.site import pages

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
# Listings of the source are written by one template: two of them stand for all.
LISTINGS = [SITE / "_modules" / name for name in ("index.html", "kl_companion/ops.html")]
PAGES = sorted(
    str(path.relative_to(SITE))
    for path in [*SITE.glob("*.html"), *SITE.glob("book/**/*.html"), *LISTINGS]
    if path.is_file()
)


def test_the_book_is_built() -> None:
    assert (SITE / "index.html").is_file(), "no built book: run `make book` first"
    assert "book/intro.html" in PAGES


def test_no_internal_link_or_anchor_is_broken() -> None:
    assert pages.broken_links(SITE) == []


def test_no_page_loads_anything_from_elsewhere() -> None:
    assert pages.outside_loads(SITE) == []


def test_every_question_has_an_answer_that_says_where_it_is_shown() -> None:
    html = (SITE / "book" / "questions.html").read_text(encoding="utf-8")
    asked = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", html, re.S)
    assert len(asked) >= 23
    assert [question for question, answer in asked if 'class="reference internal"' not in answer] == []
    assert [question for question, answer in asked if len(re.sub("<[^>]+>", "", answer)) > 450] == []


@pytest.mark.parametrize("page", PAGES)
def test_page_in_a_browser(session: Any, base: str, page: str) -> None:
    searching = page == "search.html"
    assert browsers.visit(session, base, page + "?q=divergence" * searching) == []
    if searching:
        from selenium.webdriver.support.ui import WebDriverWait

        found = "return document.querySelectorAll('#search-results li a').length"
        assert WebDriverWait(session, 20).until(lambda s: s.execute_script(found)) >= 1
