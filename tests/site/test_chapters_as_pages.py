"""Chapters as a reader sees them: little code, numbered figures with captions, headings in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
CHAPTERS = sorted(path.relative_to(SITE).as_posix() for path in SITE.glob("book/part*/*.html"))
every_chapter = pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: Path(page).stem)
MOST = 0.25  # of a chapter's height may be code
# outermost boxes of code that show without a click, and what is in them
CODE = """
const article = document.querySelector('article');
const boxes = [...article.querySelectorAll('div.cell_input, div[class*="highlight-"]')].filter(
  (box) => box.checkVisibility() && !box.closest('.cell_output')
    && !box.parentElement.closest('div.cell_input'));
const height = (element) => element.getBoundingClientRect().height;
const share = boxes.reduce((sum, box) => sum + height(box), 0) / height(article);
return [share, boxes.map((box) => box.innerText)];
"""
FIGURES = """
return [...document.querySelectorAll('article figure.kl-figure, article figure.align-default')].map(
  (figure) => figure.querySelector('figcaption')?.innerText || '');
"""
# rows of headings without a word, and cells that are names of a program
TABLES = r"""
const tables = [...document.querySelectorAll('article table')];
const empty = tables.flatMap((table) => [...table.querySelectorAll('thead tr')])
  .filter((row) => ![...row.cells].some((cell) => cell.textContent.trim() || cell.querySelector('*')));
const heads = tables.filter((table) => table.matches('.dataframe') && table.tHead)
  .flatMap((table) => [...table.querySelectorAll('th')]);
const words = heads.filter((cell) => !cell.querySelector('code')).map((cell) => cell.textContent.trim());
return [empty.map((row) => row.closest('table').innerText.slice(0, 80)),
  words.filter((word) => /^[a-z0-9]+(_[a-z0-9]+)+$/.test(word))];
"""


@pytest.fixture(scope="module")
def at(base: str, session: Any) -> Any:
    session.execute_cdp_cmd("Network.enable", {})
    session.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*mathjax*"]})

    def open_(page: str) -> Any:
        if session.current_url != f"{base}/{page}":
            session.get(f"{base}/{page}")
        return session

    return open_


@every_chapter
def test_a_chapter_shows_little_code_and_no_asserts(at: Any, page: str) -> None:
    share, shown = at(page).execute_script(CODE)
    assert share <= MOST
    assert [text for text in shown if re.search(r"^\s*assert\b", text, re.M)] == []


@every_chapter
def test_figures_have_numbers_and_captions(at: Any, page: str) -> None:
    captions = at(page).execute_script(FIGURES)
    assert captions
    assert [c for c in captions if not re.match(r"Figure (\d+\.)?\d+\. \S.{20}", c, re.S)] == []


@every_chapter
def test_tables_have_headings_in_words(at: Any, page: str) -> None:
    empty, keys = at(page).execute_script(TABLES)
    assert empty == []
    assert keys == []
