"""Inequalities on the samples of a policy, checked by enumeration and by hand."""

import itertools
import math

import pytest

from kl_companion.monitor.logs.inequalities import (
    CHANCE,
    k1_error,
    k1_error_from_k2,
    k3_error,
    largest_product,
    mean_ratio,
    negative_mean_exponent,
    pair_bounds,
    quotient_interval,
    small_sample_factor,
    success_bound,
    tail_threshold,
    token_of_excess,
)

POLICY, REFERENCE = (0.7, 0.2, 0.0999, 0.0001), (0.05, 0.25, 0.3, 0.4)
RATIOS = [math.log(p / q) for p, q in zip(POLICY, REFERENCE, strict=True)]


def test_the_tail_of_answers_of_every_length():
    """P(sum of log-ratios <= -c) <= e^-c, over all answers of one to five tokens."""
    for length in range(1, 6):
        answers = list(itertools.product(range(4), repeat=length))
        weights = [math.prod(POLICY[t] for t in answer) for answer in answers]
        sums = [sum(RATIOS[t] for t in answer) for answer in answers]
        for c in sorted({-s for s in sums if s < 0}):
            below = sum(w for w, s in zip(weights, sums, strict=True) if s <= -c)
            assert below <= math.exp(-negative_mean_exponent(-c / length, length)) * (1 + 1e-12)


def test_the_mean_ratio_is_that_of_the_tokens():
    """1 + K3 - K1 is the mean of reference/policy, and 1 in expectation."""
    k1 = sum(p * r for p, r in zip(POLICY, RATIOS, strict=True))
    k3 = sum(p * (math.exp(-r) - 1 + r) for p, r in zip(POLICY, RATIOS, strict=True))
    assert mean_ratio(k1, k3) == pytest.approx(sum(REFERENCE))
    assert mean_ratio(1.9, 32.1) == pytest.approx(31.2)


def test_a_product_counts_from_the_start_to_any_row():
    assert largest_product([2, 3, 0.1]) == pytest.approx(math.log(6))
    assert largest_product([0.5, 0.5]) == 0
    assert largest_product([0, 5]) == 0


def test_thresholds():
    assert tail_threshold(1) == CHANCE
    assert tail_threshold(256 * 435) == pytest.approx(math.log(256 * 435) + 7)
    assert tail_threshold(1, kept=0.5) == pytest.approx(7 + math.log(2))


def test_errors():
    assert k1_error(0.002, 51200) == (pytest.approx(0.00028, rel=0.01),) * 2
    assert k1_error(0.5, 100) == pytest.approx((math.sqrt(1.2 * 0.5 / 100), math.sqrt(2.7 * 0.5 / 100)))
    assert k1_error_from_k2(0.0008, 110_000) == pytest.approx(1.2e-4, rel=0.01)
    assert k3_error(0.01, 10_000) == pytest.approx((1.8e-4, 5e-4))
    assert k3_error(0.05, 10_000) == pytest.approx((2.5e-3, 2.35e-2))
    assert k3_error(0.2, 10_000) is None


@pytest.mark.parametrize("r", [-3.0, -6.1, -22.6])
def test_the_token_of_an_excess(r):
    k3 = math.exp(-r) - 1 + r
    assert token_of_excess(k3 / 500, 500) == pytest.approx(r, rel=1e-6)
    assert token_of_excess(0.001, 500) is None


def test_the_rest_by_hand():
    assert small_sample_factor(2) == pytest.approx(math.sqrt(2 / math.pi))
    assert small_sample_factor(4) == pytest.approx(0.9213, abs=1e-4)
    assert success_bound(0.5, 1.0) == pytest.approx(math.log(2))
    assert success_bound(0.5, 0.5) == 0
    assert pair_bounds(0.4, 0.08)
    assert not pair_bounds(0.4, 0.079)
    assert quotient_interval([0.0001, 1], 5e-5, [0.002, 0]) == [pytest.approx((0.025, 0.075))]
