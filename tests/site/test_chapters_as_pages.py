"""Chapters as a reader sees them: little code, numbered figures with captions, headings in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
CHAPTERS = sorted(path.relative_to(SITE).as_posix() for path in SITE.glob("book/part*/*.html"))
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
# rows of headings without a word, columns without one (an arrow that sorts is none), headings that are names
# of a program, and cells that pandas cut
TABLES = r"""
const tables = [...document.querySelectorAll('article table')];
const empty = tables.flatMap((table) => [...table.querySelectorAll('thead tr')])
  .filter((row) => ![...row.cells].some((cell) => cell.textContent.trim() || cell.querySelector('*')));
const nameless = tables.filter((table) => table.tHead?.rows.length)
  .flatMap((table) => [...[...table.tHead.rows].at(-1).cells])
  .filter((cell) => !cell.textContent.trim());
const heads = tables.filter((table) => table.matches('.dataframe') && table.tHead)
  .flatMap((table) => [...table.querySelectorAll('th')]);
const words = heads.filter((cell) => !cell.querySelector('code')).map((cell) => cell.textContent.trim());
const cut = tables.flatMap((table) => [...table.querySelectorAll('td')])
  .map((cell) => cell.textContent.trim()).filter((text) => text.endsWith('...'));
const beginning = (element) => element.closest('table').innerText.slice(0, 80);
return [empty.map(beginning), nameless.map(beginning),
  words.filter((word) => /^[a-z0-9]+(_[a-z0-9]+)+$/.test(word)), cut];
"""

# words that show before the exercises (a formula in a line is one), and what is looked at instead of read
READING = r"""
const article = document.querySelector('article');
const end = [...article.querySelectorAll('section')]
  .find((section) => section.querySelector('h2')?.textContent.startsWith('Exercises'));
const read = (element) => element.checkVisibility()
  && !(end && (end.contains(element) || end.compareDocumentPosition(element) & 4));
const inside = (element, boxes) => element.parentElement.closest(boxes);
const texts = [...article.querySelectorAll('h1, h2, h3, p, li, dt, figcaption')].filter((element) =>
  read(element) && !inside(element, 'table, .cell_input') && !element.querySelector('p, li'));
const words = (element) => {
  const copy = element.cloneNode(true);
  copy.querySelectorAll('.math').forEach((formula) => formula.replaceWith('x'));
  return copy.textContent.split(/\s+/).filter(Boolean).length;
};
const looked = [...article.querySelectorAll('figure.kl-figure, table, div.math, div.highlight')]
  .filter((element) => read(element) && !inside(element, 'table, div.highlight'));
return [texts.reduce((sum, text) => sum + words(text), 0), looked.length];
"""
WORDS_PER_MINUTE, MINUTES_PER_LOOK, LONGEST = 150, 0.5, 30


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda page: Path(page).stem)
def chapter(request: pytest.FixtureRequest, base: str, without_formulas: Any) -> Any:
    """A browser on a chapter, which is loaded once for all tests."""
    without_formulas.get(f"{base}/{request.param}")
    return without_formulas


def test_a_chapter_shows_little_code_and_no_asserts(chapter: Any) -> None:
    share, shown = chapter.execute_script(CODE)
    assert share <= MOST
    assert [text for text in shown if re.search(r"^\s*assert\b", text, re.M)] == []


def test_a_chapter_is_read_in_half_an_hour(chapter: Any) -> None:
    words, looked = chapter.execute_script(READING)
    assert words > 1000
    assert words / WORDS_PER_MINUTE + looked * MINUTES_PER_LOOK <= LONGEST


def test_figures_have_numbers_and_captions(chapter: Any) -> None:
    captions = chapter.execute_script(FIGURES)
    assert captions
    assert [c for c in captions if not re.match(r"Figure (\d+\.)?\d+\. \S.{20}", c, re.S)] == []


def test_tables_have_headings_in_words_and_whole_cells(chapter: Any) -> None:
    empty, nameless, keys, cut = chapter.execute_script(TABLES)
    assert empty == []
    assert nameless == []
    assert keys == []
    assert cut == []
