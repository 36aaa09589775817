"""The prose of every chapter: its form, its longest stretch of text, and symbols that nobody has introduced.

What counts as introduced stands in `symbols`; what a chapter needs, in `prose`. A cross-reference that
leads nowhere fails `jupyter-book build -n -W` and is no business of this file.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import nbformat
import pytest

from tests.support.chapters import code_cells
from tests.support.data import data
from tests.support.prose import LONGEST, Passage, chapter, long_stretches, missing_parts, passages
from tests.support.symbols import read_symbols

DATA = data(__file__)
BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = sorted(BOOK.glob("part*/*.ipynb"))
NOTEBOOKS = sorted(BOOK.glob("**/*.ipynb"))
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: f"{p.parent.name}-{p.stem}")

# (chapter's folder and name, symbol): why a reader needs no introduction there
EXCEPTIONS: dict[tuple[str, str], str] = {}


def notation() -> list[Passage]:
    """The first half of the notation page; the second is about the symbols of others."""
    read = chapter(BOOK / "notation.md")
    return read[: next(i for i, p in enumerate(read) if p.text == "Names in the papers")]


@cache
def notation_symbols() -> frozenset[str]:
    return frozenset(read_symbols(notation(), set())[1])


@cache
def unmet(path: Path) -> dict[str, str]:
    return {u.symbol: u.sentence for u in read_symbols(chapter(path), set(notation_symbols()))[0]}


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def test_there_are_chapters() -> None:
    assert CHAPTERS


@every_chapter
def test_a_chapter_has_question_answer_practice_and_three_graded_exercises(path: Path) -> None:
    assert missing_parts(chapter(path)) == []


@every_chapter
def test_a_chapter_shows_something_every_600_words(path: Path) -> None:
    assert long_stretches(chapter(path)) == []


@every_chapter
def test_a_chapter_introduces_its_symbols(path: Path) -> None:
    faults = {s: text for s, text in unmet(path).items() if (name(path), s) not in EXCEPTIONS}
    assert not faults, "\n".join(f"{s} is used before it is introduced: {text}" for s, text in faults.items())


# On a phone the panels of a figure stand one below the other: they are counted, not placed.
PLACED = re.compile(
    r"\b(Left|Right): |\bLeft, |\((left|right)\)|\bOn the (left|right)\b|\b[Tt]he (left|right) (panel|half)"
)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_no_panel_is_called_left_or_right(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    read = [c.source for c in cells if c.cell_type == "markdown" or "figure(" in c.source]
    assert [
        text[max(0, found.start() - 40) : found.end() + 40]
        for text in read
        for found in PLACED.finditer(text)
    ] == []


# A chapter is moved, and then its neighbors are others: a link names the chapter by its number.
NEIGHBOR = re.compile(
    r"\b(?:[Nn]ext|[Pp]revious|[Ll]ast) chapter\b|\bchapter (?:before|after)\b"
    r"|\b[Nn]ext part asks\b|\bNext, \{"
)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_no_chapter_is_called_the_next_or_the_previous_one(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert [c.id for c in cells if c.cell_type == "markdown" and NEIGHBOR.search(c.source)] == []


@every_chapter
def test_figures_have_no_text_that_a_phone_makes_too_small(path: Path) -> None:
    """A point is a pixel there (`plotting._NARROW_INCHES`)."""
    sizes = re.findall(r"fontsize=([\d.]+)", "\n".join(code_cells(path)))
    assert [size for size in sizes if float(size) < 9] == []


def test_no_exception_is_idle() -> None:
    needed = {(name(path), s) for path in CHAPTERS for s in unmet(path)}
    assert set(EXCEPTIONS) <= needed
    assert all(EXCEPTIONS.values())


def test_the_notation_page_introduces_its_symbols() -> None:
    """Somewhere: it is looked up, not read in order."""
    used_early, introduced = read_symbols(notation(), set())
    assert {u.symbol for u in used_early} <= introduced
    assert "u" not in introduced  # an index there
    assert {r"\pi", r"\pref", r"\mu", r"\ell", r"\beta", r"\lambda", "w", "r", "s", "R", "Z^*"} <= introduced
    assert not introduced & {r"\nu", r"\omega", r"\chi", "G", "g", "m", "p", "q"}


def symbols_unmet(text: str) -> list[str]:
    return [u.symbol for u in read_symbols(passages(text), {r"\pi", "y"})[0]]


@pytest.mark.parametrize(("text", "wanted"), DATA["unmet"])
def test_symbols_that_nobody_introduced(text: str, wanted: list[str]) -> None:
    assert symbols_unmet(text) == wanted


EXERCISE = """```{{exercise}} Title
:label: ex-{0}
:class: grade-{0}

How?
```

```{{solution}} ex-{0}
:label: sol-{0}
:class: dropdown

So.
```
"""
GOOD = "(label)=\n# Title\n\n**Does it?**\n\nYes. It does.\n\nSources: none.\n\n"
GOOD += (
    "```{prf:proof}\n:class: dropdown\n\nQ.\n```\n\n## What to do in practice\n\n* That.\n\n## Exercises\n\n"
)
GOOD += "\n".join(map(EXERCISE.format, (1, 2, 3)))


def test_a_chapter_that_has_all_parts() -> None:
    assert missing_parts(list(passages(GOOD))) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("# Title\n", "", "title"),
        ("**Does it?**", "**It does.**", "question"),
        ("**Does it?**", "Does it?", "question"),
        ("**Does it?**\n\n", "A word first.\n\n**Does it?**\n\n", "question"),
        ("Yes. It does.\n\n", "", "answer"),
        ("Yes. It does.", "## A heading", "answer"),
        ("## What to do in practice", "## Practice", "What to do in practice"),
        (":class: grade-2", ":class: grade-3", "grades"),
        (":class: grade-2\n", "", "grades"),
        (EXERCISE.format(3), "", "grades"),
        (EXERCISE.format(3), EXERCISE.format(3) * 2, "grades"),
        ("```{solution} ex-2\n", "```{solution} ex-1\n", "ex-2"),
        (":label: sol-2\n:class: dropdown", ":label: sol-2", "solution not folded"),
        ("```{prf:proof}\n:class: dropdown\n", "```{prf:proof}\n", "prf:proof not folded"),
    ],
)
def test_a_chapter_that_lacks_a_part(old: str, new: str, fault: str) -> None:
    assert old in GOOD
    faults = missing_parts(list(passages(GOOD.replace(old, new, 1))))
    assert any(fault in f for f in faults), faults


def test_a_long_stretch_without_anything_to_look_at() -> None:
    half = "word $a + b$ " * (LONGEST // 4) + "`code words` more\n\n"  # LONGEST / 2 + 2 words
    table, code = "| a |\n|---|\n| b |\n\n", "```python\nx = 1\n```\n\n"
    assert long_stretches(list(passages(f"## A\n\n{half}## B\n\n{half}"))) == []
    for shown in (table, code, "```{figure} a.svg\n```\n\n"):
        assert long_stretches(list(passages(f"## A\n\n{half}{shown}{half}"))) == []
    for nothing in ("", "* item\n\n", "```{margin} Aside\nwords\n```\n\n"):
        assert len(long_stretches(list(passages(f"## A\n\n{half}{nothing}{half}")))) == 1
