"""How numbers, tokens and steps stand in a sentence."""

import math

import pytest

from kl_companion.monitor import Observation
from kl_companion.monitor.largest_tokens import LargeToken
from kl_companion.monitor.report.verdicts import (
    at_steps,
    mean,
    median,
    number,
    percent,
    probability,
    quoted,
    visible,
)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.0, "0"),
        (0.031, "0.031"),
        (0.0314159, "0.031"),
        (0.1234, "0.123"),
        (-0.002, "−0.002"),
        (1.0, "1"),
        (4.56, "4.6"),
        (12.34, "12.3"),
        (99.4, "99"),
        (1234.5, "1,234"),
        (1.6e9, "1.6 billion"),
        (2.5e6, "2.5 million"),
        (3e12, "3 trillion"),
        (2e20, "2.0 × 10^20"),
        (math.nan, "NaN"),
        (-math.inf, "−infinity"),
        (0.000012, "0.000012"),
        (3e-7, "3.0 × 10^−7"),
    ],
)
def test_a_number_in_few_digits(x, text):
    assert number(x) == text


def test_shares_and_probabilities():
    assert [percent(x) for x in (0, 0.004, 0.034, 0.31, 0.985, 1)] == [
        "0 %",
        "0.4 %",
        "3.4 %",
        "31 %",
        "98.5 %",
        "100 %",
    ]
    assert [probability(x) for x in (0.0, math.log(0.25), -20.0, -math.inf)] == [
        "1",
        "0.25",
        "1 in 490 million",
        "0",
    ]


def test_what_cannot_be_seen_is_shown():
    assert visible("a\n\tb") == "a⏎⇥b"
    assert visible("\u202eevil\x00\ud800") == "\\u202eevil\\u0000\\ud800"
    assert quoted(LargeToken(0, 0, "x" * 50, "", 0, 0, 0)) == f'"{"x" * 30}…"'


def test_steps_as_the_end_of_a_sentence():
    rows = [Observation(step=step, answers=1, tokens=1) for step in (10, 20, 30, 40, 50)]
    assert at_steps(rows[:1]) == "at step 10"
    assert at_steps(rows[:2]) == "at steps 10 and 20"
    assert at_steps(rows) == "at steps 10, 20, 30 and 2 others"


def test_means_leave_out_what_is_no_number():
    assert mean([1.0, None, math.nan, 3.0]) == 2
    assert median([5.0, None, 1.0, math.inf, 3.0]) == 3
    assert mean([None]) is median([]) is None
