"""The exact reward-KL frontier: brute force over distributions, limits at both ends, its own inverse."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_book.lab.frontier import frontier, kl_at_reward, optimal_value
from tests.support.rollouts import doubles

RIGHT = (0.02, 0.3, 0.5, 0.97)
LOGP = doubles(*(math.log(p) for p in RIGHT))


def kl_of(q, p):
    """KL of two outcomes, by its definition."""
    return sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a > 0)


def best_by_search(p, beta):
    """The q that maximizes q - beta KL(q, p), by ternary search: the objective is concave."""
    low, high = 0.0, 1.0
    for _ in range(200):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if left - beta * kl_of(left, p) < right - beta * kl_of(right, p):
            low = left
        else:
            high = right
    return (low + high) / 2


@pytest.mark.parametrize("beta", [0.05, 0.3, 1.0, 4.0])
def test_brute_force_over_two_outcomes(beta):
    q = [best_by_search(p, beta) for p in RIGHT]
    kl = [kl_of(a, b) for a, b in zip(q, RIGHT, strict=True)]
    found = frontier(LOGP, beta)
    # a maximum found by comparing values is known to the root of the rounding
    assert found.reward.item() == pytest.approx(sum(q) / len(q), abs=1e-7)
    assert found.kl.item() == pytest.approx(sum(kl) / len(kl), abs=1e-6)
    assert optimal_value(LOGP, beta) == pytest.approx(sum(q) / len(q) - beta * sum(kl) / len(kl), abs=1e-13)


def test_no_distribution_over_five_strings_does_better():
    reference = doubles(0.1, 0.4, 0.2, 0.25, 0.05)  # the first string is the right one
    generator = torch.Generator().manual_seed(0)
    others = (3 * torch.randn(5000, 5, dtype=torch.float64, generator=generator)).softmax(-1)
    reward, kl = others[:, 0], (others * (others / reference).log()).sum(-1)
    for beta in (0.1, 0.5, 2.0):
        assert (reward - beta * kl).max() <= optimal_value(reference[:1].log(), beta)
    assert (kl >= kl_at_reward(reference[:1].log(), reward) - 1e-14).all()


def test_brute_force_over_two_prompts_at_a_given_mean_reward():
    p, wanted = (0.1, 0.6), 0.7
    shares = [i / 100000 for i in range(40001, 100000)]  # q of the first; the second gets the rest
    best = min((kl_of(a, p[0]) + kl_of(2 * wanted - a, p[1])) / 2 for a in shares if 2 * wanted - a < 1)
    found = kl_at_reward(doubles(*p).log(), wanted)
    assert found.item() <= best
    assert found.item() == pytest.approx(best, abs=1e-8)


def test_limits():
    found = frontier(LOGP, [0.0, 1e-300, 1e-3, 1e12, math.inf])
    start = sum(RIGHT) / len(RIGHT)
    everything = -sum(math.log(p) for p in RIGHT) / len(RIGHT)
    assert found.reward.tolist() == pytest.approx([1, 1, 1, start, start], abs=1e-12)
    assert found.kl.tolist() == pytest.approx([everything] * 3 + [0, 0], abs=1e-11)
    assert found.reward[0] == 1.0
    assert [optimal_value(LOGP, b) for b in (0, 1e-300, math.inf)] == pytest.approx([1, 1, start])
    # second order in 1 / beta: half the variance of the reward
    spread = sum(p * (1 - p) for p in RIGHT) / len(RIGHT)
    assert frontier(LOGP, 1e7).kl.item() == pytest.approx(spread / 2e14, rel=1e-6, abs=0)


def test_a_prompt_that_is_always_right_costs_nothing():
    found = frontier(doubles(0.0), [0.0, 0.2, 1.0, 5.0])
    assert found.reward.tolist() == [1.0] * 4
    assert found.kl.tolist() == [0.0] * 4
    assert optimal_value(doubles(0.0), 0.2) == pytest.approx(1.0, abs=1e-15)


def test_hardly_possible_answers_stay_finite():
    found = frontier(doubles(-800.0, -2.0), [0.0, 1e-3, 0.5])
    assert found.kl[:2].tolist() == pytest.approx([401.0, 401.0])
    assert 0 < found.kl[2].item() < 2.0
    assert kl_at_reward(doubles(-800.0, -2.0), doubles(0.5, 1.0)).tolist() == pytest.approx(
        [1.0, 401.0], abs=0.1
    )


def test_shapes_and_dtypes():
    found = frontier(LOGP.float(), torch.tensor([[0.1, 0.2], [0.3, 0.4], [1.0, 2.0]]))
    assert all(part.shape == (3, 2) and part.dtype == torch.float64 for part in found)
    assert kl_at_reward(LOGP, torch.full((2, 1, 3), 0.9)).shape == (2, 1, 3)
    assert frontier(LOGP, 0.3).kl.shape == ()
    rounded = doubles(1e-7).float()  # what a log-softmax in float32 may leave above zero
    assert frontier(rounded, 1.0).reward.item() == 1.0


@settings(max_examples=25)
@given(
    st.lists(st.floats(-30, -1e-9), min_size=1, max_size=4),
    st.lists(st.floats(0.02, 50), min_size=2, max_size=5, unique=True),
)
def test_monotone_consistent_and_inverted(logp, betas):
    logp, betas = doubles(*logp), sorted(betas)
    found = frontier(logp, betas)
    assert (found.reward.diff() <= 1e-14).all()
    assert (found.kl.diff() <= 1e-13).all()
    assert (kl_at_reward(logp, found.reward) - found.kl).abs().max() < 1e-9
    for beta, reward, kl in zip(*(part.tolist() for part in found), strict=True):
        assert optimal_value(logp, beta) == pytest.approx(reward - beta * kl, abs=1e-12)


def test_the_slope_of_the_optimal_value_is_the_kl():
    for beta in (0.1, 0.4, 1.5):
        step = 1e-5
        slope = (optimal_value(LOGP, beta + step) - optimal_value(LOGP, beta - step)) / (2 * step)
        assert -slope == pytest.approx(frontier(LOGP, beta).kl.item(), abs=1e-8)


def test_kl_at_reward_at_the_ends():
    start = sum(RIGHT) / len(RIGHT)
    found = kl_at_reward(LOGP, doubles(0.0, start - 0.1, start, start + 1e-3, 1.0))
    assert found[:3].tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    assert 0 < found[3] < 1e-4
    assert found[4].item() == pytest.approx(-sum(math.log(p) for p in RIGHT) / len(RIGHT), abs=1e-12)
