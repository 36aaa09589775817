"""What a KL coefficient is worth among answers, against sums over every order of every group."""

from __future__ import annotations

import math

import pytest
import torch

from kl_companion.auditing.updates import coin_share, expected_advantages, share_of_answers
from tests.oracles import coin

SUCCESS = (0.01, 0.1, 0.5, 0.9, 0.99)
BETAS = (0.001, 0.01, 0.1)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("group", [2, 3, 4])
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("success", SUCCESS)
def test_the_coin_by_ordered_groups(success: float, beta: float, group: int, before: bool) -> None:
    found = coin_share(success, beta, group, before=before)
    gain, effective, rest = coin.coin(success, beta, group, before)
    assert found.gain == pytest.approx(gain, rel=1e-12)
    assert found.effective_beta == pytest.approx(effective, rel=1e-12)
    # the oracle's angle is an arc cosine near 1, which knows half of the digits
    assert found.rest == pytest.approx(rest, abs=1e-5)
    assert found.rest < 1e-10 or before


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("success", SUCCESS)
def test_the_coin_in_large_groups(success: float, beta: float) -> None:
    deviation = math.sqrt(success * (1 - success))
    inside = coin_share(success, beta, None, before=True)
    assert inside.gain == pytest.approx(1 / math.hypot(deviation, beta), rel=1e-12)
    assert inside.effective_beta == pytest.approx(beta, rel=1e-12)
    outside = coin_share(success, beta, None, before=False)
    assert outside.gain == pytest.approx(1 / deviation, rel=1e-12)
    assert outside.effective_beta == pytest.approx(beta * deviation, rel=1e-12)
    assert max(inside.rest, outside.rest) < 1e-10


@pytest.mark.parametrize("unbiased", [0, 1])
@pytest.mark.parametrize("how", ["mean", "leave_one_out", "group_std"])
@pytest.mark.parametrize(
    ("returns", "chances"),
    [([0.3, -1.0, 2.0], [0.2, 0.5, 0.3]), ([0.0, 1.0, 1.0, 0.25], [0.1, 0.2, 0.3, 0.4])],
)
@pytest.mark.parametrize("group", [2, 3, 4])
def test_expected_advantages_by_ordered_groups(
    how: str, returns: list[float], chances: list[float], group: int, unbiased: int
) -> None:
    x, p = (torch.tensor(v, dtype=torch.float64) for v in (returns, chances))
    for eps in (0.0, 1e-2):
        ours = expected_advantages(how, x, p, group, eps=eps, unbiased=bool(unbiased))  # type: ignore[arg-type]
        theirs = coin.expected(returns, chances, group, how, eps, unbiased)
        assert (ours - torch.tensor(theirs, dtype=torch.float64)).abs().max() < 1e-12


def test_a_fit_with_correlated_costs() -> None:
    advantages, rewards = [0.4, -1.0, 0.7, 0.1], [0.0, 1.0, 0.2, 1.0]
    costs, chances = [0.1, 0.5, -0.3, 0.9], [0.4, 0.3, 0.2, 0.1]
    tensors = (torch.tensor(v, dtype=torch.float64) for v in (advantages, rewards, costs, chances))
    found = share_of_answers(*tensors)
    gain, charge, rest = coin.fit(advantages, rewards, costs, chances)
    assert found.gain == pytest.approx(gain, rel=1e-12)
    assert found.charge == pytest.approx(charge, rel=1e-12)
    assert found.rest == pytest.approx(rest, rel=1e-12)
