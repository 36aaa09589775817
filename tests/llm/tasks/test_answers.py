"""The answer checker: cases written down by hand, and what no way of writing an answer may change."""

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.llm.tasks import Example
from kl_companion.llm.tasks.answers import Checker, extract_answer, same_answer
from kl_companion.llm.tasks.canonical import canonical

SAME = [
    # thousands, decimals, signs
    ("1,000", "1000"),
    ("1000.0", "1000"),
    ("1,234,567.80", "1234567.8"),
    (r"1{,}000", "1000"),
    (r"10,\!000", "10000"),
    (r"10\,000", "10000"),
    ("10 000", "10000"),
    ("1e3", "1000"),
    ("1.5E-3", "0.0015"),
    (r"1.2 \times 10^{6}", "1200000"),
    (r"3 \cdot 10^2", "300"),
    (".5", "0.5"),
    ("5.", "5"),
    ("007", "7"),
    ("+5", "5"),
    ("- 5", "-5"),
    ("−5", "-5"),
    ("-0", "0"),
    ("５", "5"),
    # fractions
    ("1/2", "0.5"),
    (r"\frac12", "1/2"),
    (r"\frac1{2}", "0.5"),
    (r"\frac{1}2", "0.5"),
    (r"\dfrac{1}{2}", r"\tfrac{2}{4}"),
    (r"\frac{-1}{2}", r"-\frac{1}{2}"),
    (r"\frac{1}{-2}", "-.5"),
    (r"\frac{-1}{-2}", "1/2"),
    (r"\frac{3.5}{7}", "1/2"),
    ("½", "0.5"),
    ("1½", "3/2"),
    ("1 1/2", "1.5"),
    (r"1\frac{1}{2}", "3/2"),
    (r"-2\frac{3}{4}", "-2.75"),
    ("(-1/2)", "-0.5"),
    ("-(1/2)", "-0.5"),
    # units, currency, percent, degrees
    ("$18", "18"),
    (r"\$18.00", "18"),
    ("£3", "3"),
    ("18 dollars", "18"),
    ("50%", "50"),
    (r"50\%", "50"),
    ("50 percent", "50%"),
    (r"45^\circ", "45"),
    (r"45^{\circ}", "45°"),
    ("45 degrees", "45"),
    ("5 cm", "5"),
    ("5cm", "5"),
    (r"5\text{ cm}^2", "5"),
    (r"5\,\mathrm{kg}", "5"),
    (r"12 \text{ m}", "12"),
    ("60 miles per hour", "60"),
    ("60 miles/hour", "60"),
    ("3/4 cup", "0.75"),
    ("2 million", "2,000,000"),
    ("1.5 thousand dollars", "1500"),
    # dressing
    ("$5$", "5"),
    (r"\(5\)", "5"),
    (r"\[ 5 \]", "5"),
    (r"\boxed{5}", "5"),
    (r"\boxed{\frac{1}{2}}", "0.5"),
    ("{5}", "5"),
    ("(5)", "5"),
    ("x = 5", "5"),
    (r"x_1 = \frac{1}{3}", "1/3"),
    (" 5 . ", "5"),
    # words
    ("Yes", "yes."),
    (r"\text{Even}", "even"),
    (r"\text{(A)}", "A"),
    (r"\textbf{(C)}", "(C)"),
    ("No  solution", "no solution"),
    # tuples, intervals, sets, lists
    (r"\left( \frac12, 3 \right)", "(0.5,3)"),
    ("(1, -2)", "( 1 ,-2 )"),
    (r"[0, \infty)", "[0,∞)"),
    (r"\left(-\infty, \frac{1}{2}\right]", "(-infinity, .5]"),
    (r"x \in [1, 2]", "[1,2]"),
    (r"(1,2) \cup [3,4]", r"[3, 4]\cup(1, 2)"),
    (r"\{1, 2\}", r"\left\{2,1\right\}"),
    ("1, -2", "-2, 1"),
    ("1 or 2", "2, 1"),
    (r"x = 1 \text{ or } x = 2", "1, 2"),
    ("1 and 2", "1, 2"),
    # formulas
    (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2"),
    (r"\sqrt3", r"\sqrt{3}"),
    ("√3", "sqrt(3)"),
    (r"2\sqrt{3}", r"2 \cdot \sqrt 3"),
    (r"3\pi", "3π"),
    (r"\frac{x+1}{2y}", "(x+1)/(2y)"),
    ("x^{2} + 1", "x² + 1"),
    ("x^{12}", "x¹²"),
    (r"2 \pm \sqrt{5}", "2±√5"),
    ("x^12", "x^{12}"),
    (r"\frac{x^{n+1}}{3}", "x^{n+1}/3"),
    ("632 145/231", "146137/231"),
    ("1011_{2}", "1011_2"),
    (r"\frac{\sqrt{2}}{\sqrt{3}}", r"\dfrac{\sqrt2}{\sqrt3}"),
]

DIFFERENT = [
    ("5", "-5"),
    ("5", "50"),
    ("0.333", "1/3"),
    ("0.33333333333333333333", "1/3"),
    ("1.0000000000000000001", "1"),
    ("1,000", "1"),
    ("1,00", "100"),
    ("1,0000", "10000"),
    ("50%", "0.5"),
    ("1 2", "12"),
    ("1 3/2", "2.5"),
    ("11/2", "1 1/2"),
    ("2 million", "2"),
    ("5x", "5"),
    ("5 x", "5"),
    ("5 m", "5"),
    (r"3\pi", "3"),
    ("3 pi", "3"),
    ("5 squared", "5"),
    ("3 to 1", "3"),
    ("5 hours 30 minutes", "5"),
    ("(1, 2)", "(2, 1)"),
    ("(1, 2)", "[1, 2]"),
    ("(1, 2]", "(1, 2)"),
    ("(1, 2)", "1, 2"),
    ("(1,000)", "1000"),
    (r"\{1, 2\}", r"\{1, 3\}"),
    ("1, 2", "1, 2, 3"),
    ("1, 2", "1, 2, 2"),
    ("A", "B"),
    ("A", "a"),
    ("yes", "no"),
    ("x", "y"),
    (r"\sqrt{3}", "3"),
    (r"\frac{1}{2}3", "1/23"),
    (r"\frac{1}{2}3x", "1/23x"),
    (r"\frac{x+1}{2}", "x+1/2"),
    ("x^{12}", "x^1 2"),
    ("x^{12}", "x^{1}2"),
    ("10^6", "106"),
    ("1/0", "0"),
    ("1/0", "2/0"),
    ("3:1", "3"),
    ("٣", "3"),
    ("1 500/600", "1500/600"),
    ("x^{12}", "x_{12}"),
    ("()", "0"),
    ("[5]", "5"),
    ("__import__('os')", "0"),
    ("9**9", "387420489"),
]


def test_there_are_as_many_cases_as_promised():
    assert len({frozenset(pair) for pair in SAME}) >= 60
    assert len({frozenset(pair) for pair in DIFFERENT}) >= 40


@pytest.mark.parametrize(("a", "b"), SAME)
def test_same(a, b):
    assert same_answer(a, b), (canonical(a), canonical(b))
    assert same_answer(b, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different(a, b):
    assert not same_answer(a, b), canonical(a)
    assert not same_answer(b, a)


@pytest.mark.parametrize("nothing", ["", " ", "$", ".", "$$", r"\boxed{}", r"\!"])
def test_an_answer_that_says_nothing_is_never_right(nothing):
    assert canonical(nothing) is None
    assert not same_answer(nothing, nothing)
    assert not same_answer(nothing, "0")


# Extraction -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "style", "wanted"),
    [
        ("2+3=5\n#### 5", "gsm8k", "5"),
        ("#### 4 is wrong\n#### 1,234 dollars\nmore", "gsm8k", "1,234 dollars"),
        ("####\n 7", "gsm8k", "7"),
        ("the answer is 5", "gsm8k", None),
        ("so ####", "gsm8k", None),
        (r"so \boxed{7}", "boxed", "7"),
        (r"\boxed{1} then \boxed{\frac{1}{\sqrt{2}}}.", "boxed", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", "boxed", r"\{1, 2\}"),
        (
            r"\boxed{\left\{x : x^{2} < \frac{1}{4}\right\}} done",
            "math",
            r"\left\{x : x^{2} < \frac{1}{4}\right\}",
        ),
        (r"\boxed{\boxed{3}}", "boxed", "3"),
        (r"\fbox{8}", "boxed", "8"),
        (r"$\boxed 9$.", "boxed", "9"),
        (r"\boxed{3} and \boxed{cut off", "math", "3"),
        (r"\boxed{cut off", "boxed", None),
        (r"\boxed{ }", "boxed", None),
        (r"\boxedness{3}", "boxed", None),
        ("answer: 5", "boxed", None),
        ("The answer is $5$. Next.", "math", "$5$"),
        ("**Final Answer:** 12.5 cm.\nmore", "math", "12.5 cm"),
        (r"The answer is 4. \boxed{5}", "math", "5"),
        ("no idea about the answer", "math", None),
        ("I get 5 - 3 = 2.", "last_number", "2"),
        ("it is -1,234.5.", "last_number", "-1,234.5"),
        ("about 3/4 of it", "last_number", "3/4"),
        ("it costs $1,200", "last_number", "$1,200"),
        ("between 3-5", "last_number", "5"),
        ("x2 and y3", "last_number", None),
        ("none", "last_number", None),
        ("", "last_number", None),
    ],
)
def test_extraction(text, style, wanted):
    assert extract_answer(text, style) == wanted


def test_unknown_styles(as_installed):
    with pytest.raises(ValueError, match=r"unknown style 'gsm'\. Did you mean 'gsm8k'"):
        extract_answer("#### 5", "gsm")
    with pytest.raises(ValueError, match="unknown style"):
        Checker("latex")


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
