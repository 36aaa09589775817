"""Reading the built book with the keyboard alone, at a desk and on a phone: cards, folds, tables, search.

Formulas are left as they are written here (MathJax is blocked): test_site.py looks at them.
"""

from __future__ import annotations

import itertools
import os
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from bs4 import BeautifulSoup

from kl_book.ledger.claims import register
from kl_book.ledger.rendering import anchor
from tests.support.data import data
from tests.support.extensions import extension
from tests.support.site import browser as browsers

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
LONG = "book/reliability.html"  # has long tables
CHAPTER = "book/part1_values_and_gradients/02_two_parts_of_a_gradient.html"
FRAMEWORKS = "book/part9_frameworks/01_what_the_frameworks_optimize.html"
widths = pytest.mark.parametrize("width", browsers.SIZES.values(), ids=list(browsers.SIZES))


def chapters() -> list[Path]:
    """In the order in which they are read."""
    parts = extension("kl_single").parts(SITE.parents[1] / "_toc.yml")
    pages = [page for part in parts for page in part.pages]
    return [SITE / f"{page}.html" for page in pages if page.startswith("book/part")]


def text(path: str | Path) -> str:
    return (SITE / path).read_text(encoding="utf-8")


def test_every_marked_word_has_its_card_and_every_card_reads_without_tex() -> None:
    kinds = set()
    for path in [*chapters(), SITE / "book/quickstart.html"]:
        html = text(path)
        cards = dict(
            re.findall(r'<template class="kl-card-text" data-for="([^"]+)">(.*?)</template>', html, re.S)
        )
        marked = re.findall(r'<a class="kl-(term|code|cite)[^"]*" href="([^"]+)"', html)
        kinds |= {kind for kind, _ in marked}
        assert {uri for _, uri in marked} == set(cards), path
        assert not [card for card in cards.values() if re.search(r"[\\$\0]", card) or len(card) < 20], path
    assert kinds == {"term", "code", "cite"}


def test_the_glossary_holds_each_term_once_and_sends_to_chapters() -> None:
    html = text("book/glossary.html")
    terms = re.findall(r'<dt id="(term-[^"]+)">', html)
    assert len(terms) == len(set(terms)) > 50
    entries = re.findall(r"<dd>(.*?)</dd>", html, re.S)
    assert [e for e in entries if 'href="' not in e] == []


def test_no_fold_hides_its_name_and_solutions_start_closed() -> None:
    for path in chapters():
        html = text(path)
        folds = re.findall(
            r'<details class="([^"]*\bkl-fold\b[^"]*)"([^>]*)><summary[^>]*>(.*?)</summary>', html, re.S
        )
        assert sum("solution" in names for names, _, _ in folds) == html.count('id="sol-') >= 3
        assert not [title for _, rest, title in folds if "open" in rest or "<a" in title]
        assert not re.search(r'class="[^"]*admonition[^"]*dropdown|dropdown[^"]*admonition', html)
        assert "Toggle hidden content" not in html


def test_previous_and_next_ask_the_question_of_their_page() -> None:
    pages, followed = chapters(), 0
    for page, after in itertools.pairwise(pages):
        link = f'href="{os.path.relpath(after, page.parent)}"'
        if link not in text(page).partition('class="right-next"')[2]:
            continue  # another page is between them
        followed += 1
        question = re.search(r"<p><strong>(.*?)</strong></p>", text(after), re.S)
        said = re.search(
            r'class="right-next".*?<span class="kl-question">(.*?)</span>\s*</p>', text(page), re.S
        )
        assert question, after
        assert said, page
        plain = [re.sub(r"<[^>]+>|\W|_", "", unescape(m[1]))[:20] for m in (question, said)]
        assert plain[0] == plain[1], page
        assert not re.search(r"[\\$]", said[1]), page
    assert followed > 20


def test_a_function_leads_to_chapters_and_ledger_and_the_ledger_back() -> None:
    api = text("book/api/estimators.html")
    entry = api[api.index('id="kl_companion.k3"') :]
    entry = entry[: entry.index('<dt class="sig ')]
    assert 'href="../part1_values_and_gradients/01_measuring_kl.html"' in entry
    row = re.search(r'href="\.\./(ledger/\w+\.html)#(claim-[\w-]+)"', entry)
    assert row
    paper = text(f"book/{row[1]}")
    there = paper[paper.index(f'id="{row[2]}"') :]
    assert 'href="../api/estimators.html#kl_companion.k3"' in there[: there.index("</details>")]
    assert 'href="../api/estimators.html#kl_companion.k3"' in "".join(map(text, chapters()))


class Reader:
    """Somebody at a keyboard, before one page at a time."""

    def __init__(self, session: Any, base: str) -> None:
        self.session, self.base = session, base

    def open(self, page: str, width: int) -> None:
        """Load a page; a browser drops the keys that come before it has drawn anything."""
        browsers.resize(self.session, width)
        self.session.get(f"{self.base}/{page}")
        self.session.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.session, duration=0).send_keys(*keys).perform()

    def ask(self, script: str, *values: Any) -> Any:
        return self.session.execute_script(f"return {script}", *values)

    def wait(self, script: str, *values: Any) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.session, 10, poll_frequency=0.05).until(lambda _: self.ask(script, *values))

    def tab_to(self, selector: str) -> None:
        """Press Tab until the focus is on such an element."""
        for _ in range(60):
            self.press("\ue004")
            if self.ask("document.activeElement.matches(arguments[0])", selector):
                return
        raise AssertionError(f"60 presses of Tab reach no {selector}")


@pytest.fixture(scope="module")
def reader(without_formulas: Any, base: str) -> Reader:
    return Reader(without_formulas, base)


ENTER, ESCAPE, DOWN, RIGHT = "\ue007", "\ue00c", "\ue015", "\ue014"
CARD = "document.getElementById('kl-card')"


@widths
def test_words_and_citations_show_their_cards(reader: Reader, width: int) -> None:
    reader.open(CHAPTER, width)
    reader.press("\ue004")
    assert "Skip to main content" in reader.ask("document.activeElement.textContent")
    reader.press(ENTER)
    reader.tab_to(".kl-term")
    term = reader.ask("document.activeElement.textContent")
    assert reader.ask(f"{CARD}.textContent").startswith(f"{term} ")
    assert reader.ask("document.activeElement.getAttribute('aria-describedby')") == "kl-card"
    inside = f"(({CARD}).getBoundingClientRect())"
    assert reader.ask(f"{inside}.left >= 0 && {inside}.right <= innerWidth && {inside}.top >= 0")
    reader.press(ESCAPE)
    assert reader.ask(f"!{CARD} && document.activeElement.matches('.kl-term:not([aria-describedby])')")
    reader.tab_to(".kl-cite")
    assert re.search(r"[A-Z]\w+ .*20\d\d\.", reader.ask(f"{CARD}.textContent").replace("\n", " "))
    reader.wait("document.querySelector('.copybtn[aria-label=\"Copy this code\"]')")
    reader.press("\ue004")
    assert reader.ask(f"!{CARD} || document.activeElement.matches('.kl-cite, .kl-term')")


@widths
def test_a_solution_opens_by_key_and_by_address(reader: Reader, width: int) -> None:
    reader.open(CHAPTER, width)
    fold = "document.querySelector('details.kl-fold')"
    assert reader.ask(f"{fold}.open") is False
    reader.ask(f"{fold}.firstElementChild.focus()")
    reader.press(ENTER)
    assert reader.ask(f"{fold}.open") is True
    name = reader.ask("[...document.querySelectorAll('details.kl-fold')].at(-1).id")
    reader.ask("location.hash = arguments[0]", name)
    reader.wait("document.getElementById(arguments[0]).open", name)
    reader.ask("dispatchEvent(new Event('beforeprint'))")
    assert reader.ask("document.querySelectorAll('details.kl-fold:not([open])').length") == 0


@widths
def test_a_long_table_sorts_and_filters(reader: Reader, width: int) -> None:
    reader.open(LONG, width)
    column = "[...document.querySelector('table.kl-many').tBodies[0].rows].filter((r) => !r.hidden)"
    before = reader.ask(f"{column}.map((r) => r.textContent)")
    header = "document.querySelector('table.kl-many th[aria-sort]:nth-child(2) .kl-sort')"
    reader.ask(f"{header}.focus()")
    for order in ("ascending", "descending"):
        reader.press(ENTER)
        assert reader.ask("document.activeElement.closest('th').getAttribute('aria-sort')") == order
        shown = reader.ask(f"{column}.map((r) => r.cells[1].textContent)")
        numbers = [
            float(x.replace("−", "-")) for x in shown if re.fullmatch(r"[-−]?[\d.]+(e-?\d+)?", x.strip())
        ]
        assert len(numbers) > 5
        assert numbers == sorted(numbers, reverse=order == "descending")
    reader.press(ENTER)
    assert reader.ask(f"{column}.map((r) => r.textContent)") == before
    word = reader.ask(f"{column}[0].cells[0].textContent.trim()")
    reader.ask("document.querySelector('.kl-table-filter input').focus()")
    reader.press(word)
    left = reader.ask(f"{column}.length")
    assert 0 < left < len(before)
    assert f"{left} of {len(before)} rows" in reader.ask(
        "document.querySelector('.kl-table-filter').textContent"
    )


SHOWN = "document.querySelectorAll('.kl-ledger :is(details.kl-row, .kl-index > li):not([hidden])').length"


@widths
@pytest.mark.parametrize("page", ["ledger", "ledger/wang2025choosing"])
def test_the_ledger_filters(reader: Reader, width: int, page: str) -> None:
    reader.open(f"book/{page}.html", width)
    reader.ask("document.querySelector('.kl-filters input').focus()")
    reader.press("WZ-7")
    count = reader.ask(SHOWN)
    assert 0 < count < 30
    assert reader.ask("document.querySelector('.kl-count').textContent").startswith(f"{count} of")
    assert reader.ask("document.querySelectorAll('.kl-contents section:not([hidden])').length") <= 1


@widths
def test_addresses_in_the_ledger_lead_to_rows(reader: Reader, width: int) -> None:
    """Of a row by its old address too, and of the statements on the subject of a chapter."""
    reader.open("book/ledger.html#claim-EMA-eq147", width)
    reader.wait("location.pathname.endsWith('ledger/emapg2026_policies.html')")
    assert reader.wait("document.querySelector('#claim-EMA-eq147').open")
    chapter = "part4_vocabulary/01_unbiased"
    reader.open(f"book/ledger.html#chapter={chapter}", width)
    count = reader.ask(SHOWN)
    rows = [row for row in register().values() if row.chapter == chapter]
    assert count == len(rows) > 0


def test_no_page_of_the_ledger_is_long() -> None:
    pages = [*(SITE / "book" / "ledger").glob("*.html"), SITE / "book" / "ledger.html"]
    assert len(pages) == 13
    assert {page.name: page.stat().st_size for page in pages if page.stat().st_size > 300_000} == {}


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("EMA-PG eq (147)", "EMA-eq147"),
        ("RPG Prop 3.2", "RPG-prop3.2-loss"),
        ("TM-fig2-LOO", "TM-fig2-LOO"),
        ("vanilla estimate is differentiated with respect to the parameters of p", "TM-eq2-parameters"),
    ],
)
def test_a_search_finds_a_statement(reader: Reader, words: str, row: str) -> None:
    reader.open(f"search.html?q={quote(words)}", browsers.SIZES["desktop"])
    reader.wait("document.querySelector('#search-results [role=status]')?.textContent")
    links = reader.ask("[...document.querySelectorAll('#search-results a')].map((link) => link.href)")
    assert [link for link in links[:12] if link.endswith(f"#{anchor(row)}")], links[:12]


# what readers typed, and pages one of which must be among the first three
SEARCHES = data(__file__, "searches")
RESULTS = "[...document.querySelectorAll('#search-results li > a:first-child')].map((link) => link.href)"


@pytest.mark.parametrize("words", SEARCHES)
def test_a_search_finds_the_page(reader: Reader, words: str) -> None:
    reader.open(f"search.html?q={words}", browsers.SIZES["desktop"])
    reader.wait("document.querySelector('#search-results [role=status]')?.textContent")
    links = reader.ask(RESULTS)
    wanted = SEARCHES[words].split()
    assert [link for link in links[:3] if any(f"{page}.html" in link for page in wanted)], links[:6]
    said = reader.ask("document.querySelector('#search-results').textContent.toLowerCase()")
    assert any(word in said for word in words.lower().split())
    # an excerpt shows why
    assert reader.ask("document.querySelectorAll('#search-results li p mark').length") > 0
    assert not re.search(
        r"\\\w|[$]", reader.ask("document.querySelector('#search-results li p').textContent")
    )


@widths
def test_a_search_from_the_keyboard(reader: Reader, width: int) -> None:
    reader.open("book/glossary.html", width)
    reader.press("/")
    reader.wait("document.activeElement.matches('input[type=search]')")
    reader.press("top-k", ENTER)
    links = reader.wait(f"location.pathname.endsWith('search.html') && {RESULTS}.length > 2 && {RESULTS}")
    assert [link for link in links[:3] if "02_top_k" in link], links[:6]
    first = links[0]
    reader.press("/")
    reader.wait("document.activeElement.matches('input[type=search]')")
    reader.ask("document.activeElement.select()")
    reader.press("lora")
    reader.wait(f"{RESULTS}[0] !== arguments[0]", first)
    assert "06_training_a_real_model" in " ".join(reader.ask(RESULTS)[:3])
    assert reader.ask("location.search") == "?q=lora"
    assert reader.ask("document.documentElement.scrollWidth <= innerWidth")


def test_a_search_without_a_result_says_so(reader: Reader) -> None:
    reader.open("search.html?q=xyzzyplugh", browsers.SIZES["desktop"])
    said = reader.wait("document.querySelector('#search-results [role=status]')?.textContent")
    assert said == "Nothing in the book has “xyzzyplugh”."


def test_a_search_for_an_option_finds_the_table_of_frameworks_first(reader: Reader) -> None:
    for option in ("kl_loss_coef", "low_var_kl", "use_kl_loss", "--use-kl-loss"):
        reader.open(f"search.html?q={option}", browsers.SIZES["desktop"])
        first = reader.wait(f"{RESULTS}[0]")
        assert FRAMEWORKS in first, (option, first)


@widths
def test_the_table_of_frameworks_opens_the_folds_of_what_is_typed(reader: Reader, width: int) -> None:
    reader.open(FRAMEWORKS, width)
    table = "document.querySelector('table.kl-frameworks')"
    shown = f"[...{table}.querySelectorAll('tr.kl-setting')].filter((row) => row.checkVisibility())"
    before = reader.ask(f"{shown}.length")
    assert reader.ask(f"[...{table}.querySelectorAll('details')].every((fold) => !fold.open)")
    reader.ask(f"{table}.closest('div').previousElementSibling.querySelector('input').focus()")
    reader.press("verl low_var_kl seq-mean")
    texts = reader.ask(f"{shown}.map((row) => row.textContent)")
    assert 0 < len(texts) < before
    assert all("low_var_kl" in text and "seq-mean" in text for text in texts)
    assert reader.ask(f"[...{table}.tBodies].filter((body) => !body.hidden).length") == 1
    assert reader.ask("document.documentElement.scrollWidth <= innerWidth")


@widths
def test_the_theme_stays_from_page_to_page(reader: Reader, width: int) -> None:
    reader.open("book/glossary.html", width)
    mode = "document.documentElement.dataset.mode"
    switch = "[...document.querySelectorAll('.theme-switch-button')].find((b) => b.checkVisibility())"
    for _ in range(3):
        reader.ask(f"{switch}.focus()")
        reader.press(ENTER)
        if reader.ask(mode) == "dark":
            break
    reader.open("book/references.html", width)
    assert reader.ask(mode) == reader.ask("document.documentElement.dataset.theme") == "dark"
    reader.ask("localStorage.clear()")


def test_arrows_turn_pages_unless_something_has_the_focus(reader: Reader) -> None:
    reader.open("book/glossary.html", browsers.SIZES["desktop"])
    after = reader.ask("document.querySelector('link[rel=next]').href")
    reader.ask("document.querySelector('.bd-article dd a').focus()")
    reader.press(RIGHT)
    assert "glossary" in reader.ask("location.href")
    reader.ask("document.activeElement.blur()")
    reader.press(RIGHT)
    reader.wait("location.href === arguments[0]", after)


def test_a_printed_card_on_a_telephone(reader: Reader) -> None:
    """Rows of columns and changed lines of code keep their line, and scroll; sentences beside them wrap."""
    reader.open("book/quickstart.html", 390)
    lines = reader.ask(
        """[...document.querySelectorAll(".cell_output pre .kl-line")].map((line) => [line.textContent,
        line.classList.contains("kl-columns"), line.getBoundingClientRect().height,
        parseFloat(getComputedStyle(line).lineHeight),
        line.closest("pre").scrollWidth > line.closest("pre").clientWidth && line.closest("pre").tabIndex])"""
    )
    rows = [line for line in lines if line[1]]
    assert any(line[0].startswith("  groups of 2 ") for line in rows)
    assert any(re.match(r" *\+ .*0\.5 \*", line[0]) for line in rows)
    assert all(height < 1.5 * one for _, _, height, one, _ in rows)
    places = [place for *_, place in rows if place is not False]  # of what scrolls
    assert places
    assert set(places) == {0}
    assert any(height > 1.5 * one for _, column, height, one, _ in lines if not column)


@widths
def test_a_printed_sentence_loses_its_line_breaks_on_a_telephone_only(reader: Reader, width: int) -> None:
    page = "book/quickstart.html"
    reader.open(page, width)
    shown = reader.ask("[...document.querySelectorAll('.cell_output pre')].map((pre) => pre.textContent)")
    written = BeautifulSoup(text(page), "html.parser").select(".cell_output pre")
    assert shown == [pre.get_text() for pre in written]
    breaks = reader.ask(
        "[...document.querySelectorAll('pre .kl-wrap')].map((part) => getComputedStyle(part).whiteSpace)"
    )
    lines = reader.ask("[...document.querySelectorAll('pre .kl-line')].map((line) => line.textContent)")
    assert len([line for line in lines if line.startswith("  stale samples  ")]) == 6
    assert not [line for line in lines if re.search(r"\n *(stale samples  |stale, far, |Instead: )", line)]
    assert not [line for line in lines if line.lstrip().startswith("advantages = ")]
    assert len(breaks) > 20
    assert set(breaks) == {"normal" if width < 640 else "pre-wrap"}
