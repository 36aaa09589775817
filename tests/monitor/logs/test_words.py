"""How numbers, tokens and steps stand in a sentence."""

import math

import pytest

from kl_companion.monitor.largest_tokens import LargeToken
from kl_companion.monitor.logs import words as in_words
from kl_companion.monitor.logs.sentences import steps_text
from kl_companion.monitor.logs.words import mean, median, quoted, visible
from tests.support.data import data

DATA = data(__file__)


@pytest.mark.parametrize(
    ("words", "x", "text"), [(words, x, text) for words, rows in DATA.items() for x, text in rows]
)
def test_a_number_in_few_digits(words, x, text):
    assert getattr(in_words, words)(x) == text


def test_what_cannot_be_seen_is_shown():
    assert visible("a\n\tb") == "a⏎⇥b"
    assert visible("\u202eevil\x00\ud800") == "\\u202eevil\\u0000\\ud800"
    assert quoted(LargeToken(0, 0, "x" * 50, "", 0, 0, 0)) == f'"{"x" * 30}…"'


def test_steps_as_the_end_of_a_sentence():
    steps = [10.0, 20.0, 30.0, 40.0, 50.0]
    assert steps_text(steps[:1]) == "step 10"
    assert steps_text(steps[:2]) == "steps 10 and 20"
    assert steps_text(steps) == "steps 10, 20, 30 and 2 others"


def test_means_leave_out_what_is_no_number():
    assert mean([1.0, None, math.nan, 3.0]) == 2
    assert median([5.0, None, 1.0, math.inf, 3.0]) == 3
    assert mean([None]) is median([]) is None
