"""The built pages, as files and as a reader's browser shows them; axe-core finds nothing on any of them.

Without a browser the second half is skipped, in one line that says how to get one; with CI=1 it fails.
"""

from __future__ import annotations

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


# what readers ask in public threads, the page that answers, and words of the answer there
QUESTIONS = {
    "K3 is unbiased and quiet. Why is its gradient wrong?": ("02_two_parts_of_a_gradient", "forward"),
    "What does my framework do by default?": ("01_what_the_frameworks_optimize", "KL minus forward KL"),
    "And what should I set instead?": ("01_what_the_frameworks_optimize", "use_bias_correction_kl=True"),
    "In the reward or in the loss?": ("04_loss_or_reward", "reward"),
    "Is the KL one of tokens or of whole answers?": ("01_token_or_sequence", "token"),
    "Several updates per batch: does the KL need a ratio?": ("05_off_policy", "Once, and only once"),
    "May I clamp the log-ratio?": ("01_what_the_frameworks_optimize", "Who is let go"),
    "Why do answers become longer with the KL on?": ("01_what_the_frameworks_optimize", "mean length after"),
    "Why does my top-k distillation lose the tail?": ("02_top_k", "tail"),
    "Can I have the exact KL of 150,000 tokens?": ("03_at_vocabulary_scale", "151,936"),
    "Does a reference that follows the policy help?": ("01_ema_anchor", "speed"),
    "How do I put the right term into TRL or verl?": ("02_in_your_trainer", "VERL_USE_EXTERNAL_MODULES"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_one_click_from_the_first_page(question: str) -> None:
    wanted, words = QUESTIONS[question]
    first = SITE / "book" / "intro.html"
    path, _, anchor = pages.parse(first).named[question].partition("#")
    target = (first.parent / path).resolve()
    assert target.stem == wanted
    assert anchor in pages.parse(target).anchors
    assert words in target.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_page_in_a_browser(session: Any, base: str, page: str) -> None:
    searching = page == "search.html"
    assert browsers.visit(session, base, page + "?q=divergence" * searching) == []
    if searching:
        from selenium.webdriver.support.ui import WebDriverWait

        found = "return document.querySelectorAll('#search-results li a').length"
        assert WebDriverWait(session, 20).until(lambda s: s.execute_script(found)) >= 1
