"""The first two paragraphs of a chapter have few numbers, each with the world that it was measured in.

`first_numbers.yml` has the worlds of a chapter: phrases of the two paragraphs, such as "64 tokens".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from tests.support.data import data
from tests.support.prose import Passage, chapter, passages

BOOK = Path(__file__).resolve().parents[2] / "book"
DATA = data(__file__)
WORLDS: dict[str, list[str]] = DATA["worlds"]
CHAPTERS = {f"{path.parent.name}/{path.stem}": path for path in sorted(BOOK.glob("part*/*.ipynb"))}
MOST, SETTINGS = 2, 4  # numbers in a chapter's two paragraphs: measured ones, and those that say where
LONGEST = 60  # characters of a phrase that names a world

NUMBER = r"[−-]?\d+(?:,\d{3})*(?:\.\d+)?(?:\^(?:\{-?\d+\}|\d))?(?:\s?\\?%| percent|[MB]\b)?"
MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
PLACE = "(?:[Cc]hapter|[Ss]ection|[Ff]igure|[Tt]able|[Ee]xercise|[Pp]roposition|[Aa]ppendix|[Vv]ersion)s?"
READ = re.compile(
    r"(?:\{[\w:]+\})?(?P<tick>`+).+?(?P=tick)"  # code, or a role and its text
    rf"|\b{PLACE} [\d.]*\d(?:(?:, | and | to )\d[\d.]*\b)*"
    rf"|\b{MONTH} (?:\d{{1,2}}, )?\d{{4}}\b|\b\d{{4}}-\d\d(?:-\d\d)?\b"
    r"|[A-Za-z][\w+-]*(?:\.\d[\w-]*)*"  # a word, and a name: K3, top-32, bfloat16, SmolLM2-135M
    r"|(?P<formula>\$[^$]+\$)"
    rf"|(?P<number>{NUMBER}(?:(?: to |–| and (?=[\d.,]+ ?%)){NUMBER})?)",
    re.S,
)
# A formula that is a number: 10^{-6}, 20 - 1 = 19, 16\beta, and one that sets a symbol: \beta = 0.1
VALUE = re.compile(
    rf"\$(?:\\log )?(?:\\?\w+ (?:=|<|>|\\[lg]e|\\approx) )?"
    rf"{NUMBER}(?:(?: [-+=] |\\cdot |\\times ){NUMBER})*(?:\\\w+)?\$"
)
SENTENCE = re.compile(r"(?:[^.!?]|[.!?](?![*)]* +[^a-z ]))+[.!?]?[*)]*")


def numbers(text: str) -> Iterator[re.Match[str]]:
    """The numbers of a text; a range is one, a value in a formula too."""
    for found in READ.finditer(text):
        if found["number"] or (found["formula"] and VALUE.fullmatch(found[0])):
            yield found


def spans(text: str, worlds: list[str]) -> list[tuple[int, int]]:
    return [found.span() for world in worlds for found in re.finditer(re.escape(world), text)]


def first_two(read: list[Passage]) -> list[str]:
    """The paragraphs of the answer, below the title and the bold question, two of them at most."""
    return [" ".join(p.text.split()) for p in takewhile(lambda p: p.kind == "text", read[2:])][:2]


def faults(paragraphs: list[str], worlds: list[str]) -> list[str]:
    """What is wrong with the numbers of paragraphs, a line each."""
    found = [f"not in the text: {world}" for world in worlds if not spans(" ".join(paragraphs), [world])]
    found += [f"too long for a world: {world}" for world in worlds if len(world) > LONGEST]
    measured, settings = list[str](), 0
    for text in paragraphs:
        named = spans(text, worlds)
        for number in numbers(text):
            if any(start <= number.start() and number.end() <= end for start, end in named):
                settings += 1
                continue
            measured.append(number[0])
            end = next(s.end() for s in SENTENCE.finditer(text) if number.start() < s.end())
            if not any(start < end for start, _ in named):
                found.append(f"no world: {number[0]} in {text[max(0, end - 60) : end]!r}")
    found += [f"{len(measured)} numbers, {MOST} allowed: {measured}"] * (len(measured) > MOST)
    return found + [f"{settings} numbers in worlds, {SETTINGS} allowed"] * (settings > SETTINGS)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_begins_with_few_numbers_and_their_worlds(name: str) -> None:
    assert faults(first_two(chapter(CHAPTERS[name])), WORLDS.get(name, [])) == []


def test_worlds_are_those_of_chapters() -> None:
    assert set(WORLDS) - set(CHAPTERS) == set()
    assert [name for name, worlds in WORLDS.items() if not worlds] == []


@pytest.mark.parametrize(("text", "wanted"), DATA["numbers"])
def test_the_numbers_of_a_text(text: str, wanted: list[str]) -> None:
    assert [found[0] for found in numbers(text)] == wanted


@pytest.mark.parametrize(("paragraphs", "worlds", "wanted"), DATA["faults"])
def test_a_number_without_its_world(paragraphs: list[str], worlds: list[str], wanted: list[str]) -> None:
    found = faults(paragraphs, worlds)
    assert len(found) == len(wanted)
    assert all(line.startswith(start) for line, start in zip(found, wanted, strict=True))


def test_the_first_two_paragraphs_end_at_a_heading() -> None:
    page = "(a)=\n# T\n\n**Q?**\n\nOne,\nin lines.\n\n{}\n\nThree.\n"
    assert first_two(list(passages(page.format("Two.")))) == ["One, in lines.", "Two."]
    assert first_two(list(passages(page.format("## Two")))) == ["One, in lines."]
