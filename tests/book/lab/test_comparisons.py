"""Intervals over seeds: verdicts on exact cases."""

import math

import numpy as np
import pytest

from kl_book.lab.comparisons import Comparison, compare, runs_needed
from kl_companion.student_t import t_quantile
from tests.support.data import data

DATA = data(__file__)


def test_a_difference_with_its_interval():
    # differences 1, 2, 3: mean 2, standard deviation 1, standard error 1/sqrt(3)
    found = compare([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)
    assert found.difference == 2
    assert found.low == pytest.approx(2 - half)
    assert found.high == pytest.approx(2 + half)
    assert (found.n, found.verdict) == (3, "undecided")
    # 4 runs: 3.18245 / 2 = 1.59 < 2 leaves out 0, three do not: 2.48 > 2
    assert found.runs_needed == 4


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    x = rng.normal(1.0, 2.0, size=(2000, 3))
    inside = [c.low < 1.0 < c.high for c in map(compare, x)]
    assert np.mean(inside) == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 2000))


@pytest.mark.parametrize(("a", "b", "verdict"), DATA["verdicts"])
def test_verdicts(a, b, verdict):
    found = compare(a, b)
    assert found.verdict == verdict
    assert (found.low > 0) == (verdict == "higher")
    assert (found.high < 0) == (verdict == "lower")
    if found.n > 1 and found.difference != 0:
        assert (found.runs_needed <= found.n) == (verdict != "undecided")


@pytest.mark.parametrize(("a", "margin", "verdict"), DATA["a_margin_calls_equal_what_lies_within"])
def test_a_margin_calls_equal_what_lies_within(a, margin, verdict):
    found = compare(a, margin=margin)
    assert found.verdict == verdict
    assert (found.runs_needed <= found.n) == (verdict != "undecided")
    assert compare(a)[:4] == found[:4]


def test_runs_that_would_show_a_small_difference_to_be_small():
    # spread 1, difference 0.1: leaving out 0 takes hundreds, staying within 0.6 a half width of 0.5
    x = 0.1 + np.array([1.0, -1.0, 0.0])
    n = compare(x, margin=0.6).runs_needed
    assert n == runs_needed(0.5, 1.0) < runs_needed(0.1, 1.0) / 10
    assert compare(x, margin=0.15).runs_needed == runs_needed(0.1, 1.0)


def test_pairs_drop_what_a_seed_does_to_both():
    seeds = np.array([0.0, 5.0, -3.0, 11.0])
    shifted = compare(seeds + np.array([1.0, 1.1, 0.9, 1.0]), seeds)
    assert shifted.verdict == "higher"
    assert compare((seeds + 1)[::-1], seeds[::-1]).verdict == "higher"
    assert compare(seeds + 1, np.roll(seeds, 1)).verdict == "undecided"


def test_ends_of_the_range():
    one = compare([2.0], [1.0])
    assert one == Comparison(1.0, -math.inf, math.inf, 1, "undecided", pytest.approx(math.nan, nan_ok=True))
    assert runs_needed(0.0, 1.0) == math.inf
    assert runs_needed(1.0, 0.0) == 2
    assert runs_needed(1e-9, 1.0) == math.inf


@pytest.mark.parametrize(("difference", "spread"), [(1.0, 1.0), (0.1, 1.0), (0.02, 1.0), (-0.3, 0.2)])
def test_the_fewest_runs(difference, spread):
    n = runs_needed(difference, spread)
    assert t_quantile(n - 1) * spread / math.sqrt(n) < abs(difference)
    assert n == 2 or t_quantile(n - 2) * spread / math.sqrt(n - 1) >= abs(difference)
