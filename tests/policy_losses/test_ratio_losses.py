"""Policy losses of ratios: values and slopes by hand, at and beyond every edge."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kl_companion.policy_losses.ratio_losses import POLICY_LOSSES, policy_loss
from tests.support.rollouts import NAN, doubles

ONE = torch.ones(1, 1)


def at(name: str, log_ratio: float, a: float, **options: Any) -> tuple[float, float]:
    """Value and slope of the loss of one token."""
    x = doubles([log_ratio]).requires_grad_()
    loss = policy_loss(name, x, doubles([a]), ONE, **options)  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(loss.sum(), x)
    return loss.item(), slope.item()


# of a log-ratio and an advantage: the value and the slope; the range is 0.8 to 1.3
BY_HAND = [
    ("reinforce", 0.4, 2.0, -0.8, -2.0),
    ("reinforce", 0.4, -2.0, 0.8, 2.0),
    ("importance", 0.4, 2.0, -2 * math.exp(0.4), -2 * math.exp(0.4)),
    ("ppo", 0.2, 2.0, -2 * math.exp(0.2), -2 * math.exp(0.2)),
    ("ppo", 0.4, 2.0, -2.6, 0.0),
    ("ppo", -0.4, 2.0, -2 * math.exp(-0.4), -2 * math.exp(-0.4)),
    ("ppo", 0.4, -2.0, 2 * math.exp(0.4), 2 * math.exp(0.4)),
    ("ppo", -0.4, -2.0, 1.6, 0.0),
    ("ppo", -0.1, -2.0, 2 * math.exp(-0.1), 2 * math.exp(-0.1)),
    ("ppo", 0.0, 2.0, -2.0, -2.0),
    ("ppo", 0.0, -2.0, 2.0, 2.0),
    ("cispo", 0.4, 2.0, -1.3 * 2 * 0.4, -2.6),
    ("cispo", -0.4, -2.0, 0.8 * 2 * -0.4, 1.6),
    ("cispo", 0.1, -2.0, math.exp(0.1) * 2 * 0.1, 2 * math.exp(0.1)),
]


@pytest.mark.parametrize(("name", "log_ratio", "a", "value", "slope"), BY_HAND)
def test_a_token_by_hand(name: str, log_ratio: float, a: float, value: float, slope: float) -> None:
    assert at(name, log_ratio, a, low=0.2, high=0.3) == pytest.approx((value, slope), rel=1e-14, abs=1e-15)


def test_the_range_is_a_fifth_to_either_side_if_nothing_is_said() -> None:
    assert at("ppo", 1.0, 1.0) == pytest.approx((-1.2, 0.0))
    assert at("ppo", -1.0, -1.0) == pytest.approx((0.8, 0.0))


@pytest.mark.parametrize(
    ("log_ratio", "a", "value", "slope"),
    [
        (0.5, -2.0, 2 * math.exp(0.5), 2 * math.exp(0.5)),
        (1.5, -2.0, 6.0, 0.0),
        (1.5, -0.5, 1.5, 0.0),
        (-0.5, -2.0, 1.6, 0.0),
        (1.5, 2.0, -2.4, 0.0),
        (1.5, 0.5, -0.6, 0.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("name", ["ppo", "gspo"])
def test_the_dual_clip_bounds_what_a_negative_advantage_costs(
    name: str, log_ratio: float, a: float, value: float, slope: float
) -> None:
    assert at(name, log_ratio, a, dual=3.0) == pytest.approx((value, slope), rel=1e-14, abs=1e-15)


def test_gspo_takes_the_geometric_mean_of_an_answers_ratios() -> None:
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0]])
    x = doubles([NAN, 0.3, -0.1, 0.1], [-0.5, -0.1, NAN, 7.0]).requires_grad_()
    a = doubles([NAN, 1.0, 2.0, -1.0], [2.0, -1.0, NAN, 7.0])
    loss = policy_loss("gspo", x, a, mask, low=0.2, high=0.2)
    s = math.exp(0.1), math.exp(-0.3)
    wanted = [[0, -s[0], -2 * s[0], s[0]], [-2 * s[1], 0.8, 0, 0]]
    torch.testing.assert_close(loss, doubles(*wanted))
    (slope,) = torch.autograd.grad(loss.sum(), x)
    # every token has a part in the ratio of its answer; the clipped -1 has none in the second
    torch.testing.assert_close(slope, doubles([0, *[-2 * s[0] / 3] * 3], [-s[1], -s[1], 0, 0]))


@given(
    st.sampled_from(POLICY_LOSSES),
    st.floats(-3, 3),
    st.floats(-5, 5),
    st.floats(0, 1),
    st.floats(0, 5),
)
def test_inside_its_range_every_loss_has_the_slope_of_the_ratio_times_the_advantage(
    name: str, log_ratio: float, a: float, low: float, high: float
) -> None:
    ratio = math.exp(log_ratio)
    assume(min(abs(ratio - 1 + low), abs(ratio - 1 - high)) > 1e-9)  # at an edge either slope is one
    value, slope = at(name, log_ratio, a, low=low, high=high)
    if name == "reinforce":
        assert slope == pytest.approx(-a, abs=1e-12)
    elif 1 - low < ratio < 1 + high or name == "importance":
        assert slope == pytest.approx(-a * ratio, rel=1e-12, abs=1e-12)
    elif name in ("ppo", "gspo"):  # a lower bound of the gain, flat where it has been had
        assert value >= -a * ratio - 1e-12
        assert slope == pytest.approx(0.0 if (ratio > 1) == (a > 0) else -a * ratio, rel=1e-12, abs=1e-12)
    else:
        assert abs(slope) <= abs(a) * max(1 + high, ratio) + 1e-12


def test_a_range_may_reach_the_edge() -> None:
    assert at("ppo", 5.0, 1.0, low=0.0, high=math.inf) == pytest.approx((-math.exp(5), -math.exp(5)))
    assert at("ppo", -0.1, -1.0, low=0.0, high=0.0) == (1.0, 0.0)
    assert at("ppo", 0.0, -1.0, dual=1.0)[0] == 1.0
