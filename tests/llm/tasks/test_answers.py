"""The answer checker: cases written down by hand, and what no way of writing an answer may change."""

import random
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.llm.tasks import Example
from kl_companion.llm.tasks.answers import Checker, extract_answer, same_answer
from kl_companion.llm.tasks.canonical import canonical

TABLES = yaml.safe_load(Path(__file__).with_name("answers.yml").read_text(encoding="utf-8"))


def test_there_are_as_many_cases_as_promised():
    assert len({frozenset(pair) for pair in TABLES["same"]}) >= 60
    assert len({frozenset(pair) for pair in TABLES["different"]}) >= 40


@pytest.mark.parametrize(("a", "b"), TABLES["same"])
def test_same(a, b):
    assert same_answer(a, b), (canonical(a), canonical(b))
    assert same_answer(b, a)


@pytest.mark.parametrize(("a", "b"), TABLES["different"])
def test_different(a, b):
    assert not same_answer(a, b), canonical(a)
    assert not same_answer(b, a)


@pytest.mark.parametrize("nothing", ["", " ", "$", ".", "$$", r"\boxed{}", r"\!"])
def test_an_answer_that_says_nothing_is_never_right(nothing):
    assert canonical(nothing) is None
    assert not same_answer(nothing, nothing)
    assert not same_answer(nothing, "0")


# Extraction -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "style", "wanted"), TABLES["extracted"])
def test_extraction(text, style, wanted):
    assert extract_answer(text, style) == wanted


def test_the_reward_counts_what_it_cannot_read():
    check, example = Checker("gsm8k"), Example("?", "1,000")
    rewards = [check(text, example) for text in ("#### 1000.0", "#### 999", "1000", "#### $", "")]
    assert rewards == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert (check.seen, check.unread) == (5, 3)


# Properties -----------------------------------------------------------------------------------------------

NUMBERS = st.fractions(max_denominator=1000).filter(lambda x: abs(x) < 10**9)
BARE = ["frac", "sqrt", "boxed", "text", "left", "right", "pi", "cup", "infty", "{", "}", ",", "!"]
MACROS = [*("\\" + name for name in BARE), *"½²°√−٣"]
PIECES = st.sampled_from([*"0123456789+-*/^_=,.:;()[]{}<>|'\"!?$% \\abxyz\n", *MACROS, " or ", " cm"])
ANYTHING = st.one_of(st.text(max_size=30), st.lists(PIECES, max_size=15).map("".join))


def ways_to_write(x):
    """The number in ways that a reader takes for the same."""
    sign, top, bottom = "-" * (x < 0), abs(x.numerator), x.denominator
    yield f"{sign}{top}/{bottom}"
    yield f"{sign}\\frac{{{top}}}{{{bottom}}}"
    yield f"\\dfrac{{{sign}{top}}}{{{bottom}}}"
    yield f"{sign}{top:,}/{3 * bottom * 1}".replace(f"{top:,}", f"{3 * top:,}", 1)
    if top > bottom > 1 and top % bottom:
        yield f"{sign}{top // bottom} {top % bottom}/{bottom}"
        yield f"{sign}{top // bottom}\\frac{{{top % bottom}}}{{{bottom}}}"
    if bottom == 1:
        yield f"{sign}{top}"
        yield f"{sign}{top:,}"
        yield f"{sign}{top}.000"
        yield f"{sign}{top}e0"
        yield f"{sign}{top:,}".replace(",", "{,}")


@settings(max_examples=100)
@given(NUMBERS, st.randoms(use_true_random=False))
def test_every_way_to_write_a_number_is_that_number(x, rng: random.Random):
    dress = [
        lambda s: s,
        lambda s: f"${s}$",
        lambda s: f" {s} .",
        lambda s: f"\\boxed{{{s}}}",
        lambda s: f"{s}\\%",
        lambda s: f"{s} apples",
        lambda s: f"{s}\\text{{ cm}}",
        lambda s: f"n = {s}",
        lambda s: "({})".format(s.replace("{,}", "").replace(",", "")),
        lambda s: s.replace("-", "−"),
    ]
    for text in ways_to_write(x):
        dressed = rng.choice(dress)(text)
        assert canonical(dressed) == ("number", x), dressed


@settings(max_examples=100)
@given(NUMBERS, NUMBERS)
def test_numbers_are_the_same_only_if_they_are_equal(x, y):
    assert same_answer(f"{x}", f"{y}") == (x == y)
    assert not same_answer(f"{x}", f"{x + Fraction(1, 10**12)}")
    pairs = same_answer(f"({x}, {y})", f"\\left({y}, {x}\\right)")
    assert pairs == (x == y)
    assert same_answer(f"\\{{{x}, {y}\\}}", f"\\{{{y}, {x}\\}}")


@settings(max_examples=150)
@given(ANYTHING, ANYTHING)
def test_reflexive_symmetric_and_never_an_error(a, b):
    assert same_answer(a, a) == (canonical(a) is not None)
    assert same_answer(a, b) == same_answer(b, a)
    hash(canonical(a))
    for style in ("gsm8k", "math", "boxed", "last_number"):
        found = extract_answer(a, style)
        assert found is None or found == found.strip() != ""


@settings(max_examples=100)
@given(ANYTHING.filter(lambda s: "boxed" not in s and "fbox" not in s and "." not in s and "\\" not in s))
def test_spacing_and_dollars_around_an_answer_change_nothing(a):
    wanted = canonical(a)
    for dressed in (f" {a}\n", f"${a}$", f"$ {a} $"):
        assert canonical(dressed) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "(" * 30 + "5" + ")" * 30,
        "(" * 5000,
        "(" * 400 + "5" + ")" * 400,
        r"\frac{" * 80,
        "9" * 6000,
        "1e999",
        "1 " * 240,
        r"\boxed{" * 3000,
    ],
)
def test_what_is_too_long_or_too_deep_is_read_as_text_and_quickly(text):
    assert same_answer(text, text)
    assert not same_answer(text, "5")
    for style in ("gsm8k", "math", "boxed", "last_number"):
        extract_answer(text, style)
