"""Advantages over every order of the others and in the limit; and what a coefficient is worth on a coin."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from kl_book.coins import coin_share, expected_advantages
from kl_companion.auditing.updates import ADVANTAGES
from tests.oracles import updates as oracle

RETURNS = [0.3, -1.0, 2.0, 0.3]
CHANCES = [0.1, 0.4, 0.3, 0.2]


def doubles(x: Any) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_an_eps_if_none_is_said() -> None:
    limit = expected_advantages("group_std", doubles([0.0, 1.0]), doubles([0.5, 0.5]), None)
    assert limit[1].item() == pytest.approx(0.5 / (0.5 + 1e-4), rel=1e-14)
    of_two = expected_advantages("group_std", doubles([0.0, 1.0]), doubles([0.5, 0.5]), 2)
    assert of_two[1].item() == pytest.approx(0.25 / (math.sqrt(0.5) + 1e-4), rel=1e-14)


@pytest.mark.parametrize("eps", [0.0, 0.05])
@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("group", [2, 3, 4])
@pytest.mark.parametrize("how", ["mean", "leave_one_out", "group_std", "whitened", "others_std"])
def test_expected_advantages_over_every_order(how: Any, group: int, unbiased: bool, eps: float) -> None:
    if how == "whitened" and eps == 0.0:
        eps = 1e-8
    found = expected_advantages(how, doubles(RETURNS), doubles(CHANCES), group, eps=eps, unbiased=unbiased)
    choices = {"advantage": how, "eps": eps, "ddof": int(unbiased)}
    wanted = oracle.expected_advantages(RETURNS, CHANCES, group, **choices)
    assert found.tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-14)


MEAN = sum(p * r for p, r in zip(CHANCES, RETURNS, strict=True))
VARIANCE = sum(p * (r - MEAN) ** 2 for p, r in zip(CHANCES, RETURNS, strict=True))


@pytest.mark.parametrize(
    ("how", "spread"),
    [
        ("mean", 1.0),
        ("leave_one_out", 1.0),
        ("group_std", math.sqrt(VARIANCE) + 0.5),
        ("batch_std", math.sqrt(VARIANCE) + 0.5),
        ("others_std", math.sqrt(VARIANCE) + 0.5),
        ("whitened", math.sqrt(VARIANCE + 0.5)),
    ],
)
def test_the_limit_of_large_groups_and_the_way_there(how: Any, spread: float) -> None:
    returns, chances = doubles(RETURNS), doubles(CHANCES)
    limit = expected_advantages(how, returns, chances, None, eps=0.5)
    assert limit.tolist() == pytest.approx([(r - MEAN) / spread for r in RETURNS], rel=1e-14)
    missing = [
        (expected_advantages(how, returns, chances, n, eps=0.5) - limit).norm().item() for n in (5, 10, 20)
    ]
    if how == "leave_one_out":
        assert max(missing) < 1e-13
    else:
        assert all(1.6 < a / b < 3.5 for a, b in itertools.pairwise(missing))  # of order 1/n


def test_rewards_as_they_are_and_returns_that_agree() -> None:
    for group in (None, 1, 3):
        found = expected_advantages("none", doubles(RETURNS), doubles(CHANCES), group)
        assert found.tolist() == pytest.approx(RETURNS, rel=1e-14)
    for how in [name for name in ADVANTAGES if name != "none"]:
        for group in (None, 2):
            same = expected_advantages(how, doubles([0.1] * 4), doubles(CHANCES), group, eps=0.0)
            assert same.abs().max() < 1e-15


# a coin


@pytest.mark.parametrize("how", ["group_std", "leave_one_out", "mean"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("success", [0.1, 0.7])
def test_the_coin_over_every_order(success: float, before: bool, how: Any) -> None:
    returns = [r - 0.2 * c * before for r in (1.0, 0.0) for c in (1.0, -1.0)]
    chances = [success / 2] * 2 + [(1 - success) / 2] * 2
    choices = {"advantage": how, "ddof": 1, "eps": 0.01}
    a = oracle.expected_advantages(returns, chances, 3, **choices)
    # rewards and costs are independent and costs are +1 or -1: two regressions by hand
    gain = (a[0] + a[1] - a[2] - a[3]) / 2
    charge = -sum(p * x * c for p, x, c in zip(chances, a, (1, -1, 1, -1), strict=True))
    found = coin_share(success, 0.2, 3, before=before, how=how, eps=0.01, unbiased=True)
    assert found.gain == pytest.approx(gain, rel=1e-12)
    assert found.charge == pytest.approx(charge if before else 0.2, rel=1e-12)
    assert found.effective_beta == pytest.approx(found.charge / gain, rel=1e-12)


@pytest.mark.parametrize("success", [0.01, 0.3, 0.5])
def test_the_coin_in_large_groups(success: float) -> None:
    deviation = math.sqrt(success * (1 - success))
    before, after = (coin_share(success, 0.3, None, before=b) for b in (True, False))
    assert before.gain == pytest.approx(1 / math.sqrt(deviation**2 + 0.09), rel=1e-12)
    assert before.effective_beta == pytest.approx(0.3, rel=1e-12)
    assert after.gain == pytest.approx(1 / deviation, rel=1e-12)
    assert after.effective_beta == pytest.approx(0.3 * deviation, rel=1e-12)
    assert max(before.rest, after.rest) < 1e-10


def test_the_coin_by_default_divides_by_the_deviation_of_the_population_without_eps() -> None:
    # one right of two answers: +1 and -1, so that E[A | right] = (1 - p) and the gain is 1
    found = coin_share(0.25, 0.0, 2, before=True)
    assert (found.gain, found.charge, found.rest) == pytest.approx((1.0, 0.0, 0.0), abs=1e-10)
    unbiased = coin_share(0.25, 0.0, 2, before=True, unbiased=True)
    assert unbiased.gain == pytest.approx(0.5**0.5)
