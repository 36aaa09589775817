"""What a coefficient is worth in an update: sums put together by hand, and where there is no answer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kl_companion.auditing.updates import Share, expected_update, prompt, share
from kl_companion.auditing.worlds.objectives import OBJECTIVES, field
from kl_companion.tabular import bandit, prefix_tree
from tests.support.updates import recipe_of

TREE = prefix_tree(3, 2, seed=3, eos=True)
REWARD = field(OBJECTIVES["expected_reward"], TREE)
SEQUENCE = field(OBJECTIVES["sequence_reverse_kl"], TREE)
TOKEN = field(OBJECTIVES["token_reverse_kl"], TREE)


def test_an_update_that_is_a_sum() -> None:
    update = 2 * REWARD - 0.3 * SEQUENCE
    found = share(update, TREE, "sequence_reverse_kl")
    assert found.gain == pytest.approx(2, rel=1e-12)
    assert found.charge == pytest.approx(0.3, rel=1e-11)
    assert found.rest < 1e-10
    assert found.size == pytest.approx(update.norm().item(), rel=1e-15)
    assert found.effective_beta == pytest.approx(0.15, rel=1e-11)


def test_a_penalty_that_is_a_sum_of_objectives() -> None:
    penalty = {"sequence_reverse_kl": 1.0, "token_reverse_kl": -0.5}
    found = share(REWARD - 0.3 * (SEQUENCE - 0.5 * TOKEN), TREE, penalty)
    assert (found.gain, found.charge) == pytest.approx((1.0, 0.3), rel=1e-11)
    assert found.rest < 1e-10
    assert math.isnan(share(REWARD, TREE, {}).charge)


def test_rewards_of_other_kinds() -> None:
    each, lengths = (
        field(OBJECTIVES[n], TREE) for n in ("expected_reward_per_token", "expected_inverse_length")
    )
    found = share(3 * each - 0.3 * SEQUENCE, TREE, "sequence_reverse_kl", reward="expected_reward_per_token")
    assert (found.gain, found.charge) == pytest.approx((3.0, 0.3), rel=1e-11)
    mean = (TREE.probabilities() * TREE.rewards).sum()
    update = 3 * (each - mean * lengths)
    found = share(update, TREE, "sequence_reverse_kl", reward="centered_reward_per_token")
    assert (found.gain, found.charge) == pytest.approx((3.0, 0.0), rel=1e-11)
    assert share(update, TREE, "sequence_reverse_kl").rest > 1


def test_what_is_left_of_an_update_is_an_angle() -> None:
    across = torch.zeros_like(REWARD).index_fill_(0, torch.tensor([1]), 1.0)
    across -= (across * REWARD).sum() / REWARD.norm() ** 2 * REWARD
    aside = REWARD / REWARD.norm() + math.tan(math.radians(30)) * across / across.norm()
    found = share(aside, TREE, {})
    assert found.rest == pytest.approx(30, rel=1e-12)
    assert found.gain == pytest.approx(1 / REWARD.norm().item(), rel=1e-12)
    assert share(across, TREE, {}).rest == pytest.approx(90, rel=1e-12)
    assert share(across, TREE, {}).gain == 0.0


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_a_gain_of_rounding_is_none(factor: float) -> None:
    found = share(-factor * SEQUENCE, TREE, "sequence_reverse_kl")
    assert found.gain == 0.0
    assert found.charge == pytest.approx(factor)
    assert found.effective_beta == math.inf
    assert share(factor * SEQUENCE, TREE, "sequence_reverse_kl").effective_beta == -math.inf
    only = share(factor * REWARD, TREE, "sequence_reverse_kl")
    assert (only.charge, only.effective_beta) == (0.0, 0.0)


def test_no_update_is_no_answer() -> None:
    found = share(torch.zeros_like(REWARD), TREE, "sequence_reverse_kl")
    assert (found.gain, found.charge, found.size) == (0.0, 0.0, 0.0)
    assert math.isnan(found.rest)
    assert math.isnan(found.effective_beta)
    assert math.isnan(share(1e-12 * REWARD, TREE, {}).rest)


def test_an_objective_at_rest_has_no_coefficient() -> None:
    at = TREE._replace(ref_logits=TREE.logits)
    found = share(REWARD, at, "sequence_reverse_kl")
    assert found.gain == pytest.approx(1)
    assert math.isnan(found.charge)
    assert math.isnan(found.effective_beta)
    equal = share(-SEQUENCE, TREE._replace(rewards=torch.ones(7).double()), "sequence_reverse_kl")
    assert math.isnan(equal.gain)
    assert equal.charge == pytest.approx(1)
    assert math.isnan(equal.effective_beta)
    still = share(SEQUENCE, at._replace(rewards=torch.ones(7).double()), "sequence_reverse_kl")
    assert (still.rest, still.size) == (90.0, pytest.approx(SEQUENCE.norm().item()))
    assert math.isnan(still.gain)
    assert math.isnan(still.charge)


@pytest.mark.parametrize(
    ("gain", "charge", "wanted"),
    [(2.0, 3.0, 1.5), (0.0, 2.0, math.inf), (0.0, -2.0, -math.inf), (2.0, 0.0, 0.0)],
)
def test_the_ratio_of_two_coefficients(gain: float, charge: float, wanted: float) -> None:
    assert Share(gain, charge, 0.0, 1.0).effective_beta == wanted


@pytest.mark.parametrize(("gain", "charge"), [(0.0, 0.0), (0.0, math.nan), (math.nan, 1.0), (1.0, math.nan)])
def test_a_ratio_that_there_is_not(gain: float, charge: float) -> None:
    assert math.isnan(Share(gain, charge, 0.0, 1.0).effective_beta)


def test_a_recipe_of_which_the_sum_is_known() -> None:
    # summed over tokens, the deviation of large groups: a = 1/s, and a penalty before has b = beta/s
    at = prompt(0.3, scale=0.5)
    recipe = recipe_of(kl="k1", aggregate="sum", beta=0.2)
    found = share(expected_update(recipe.loss, at, None), at.problem, "sequence_reverse_kl")
    assert found.effective_beta == pytest.approx(0.2, rel=1e-9)
    assert found.rest < 1e-5
    after = recipe_of(kl="k1", place="after_whole", aggregate="sum", beta=0.2)
    found = share(expected_update(after.loss, at, None), at.problem, "sequence_reverse_kl")
    deviation = math.sqrt(0.3 * 0.7)
    assert found.gain == pytest.approx(1 / deviation, rel=1e-9)
    assert found.effective_beta == pytest.approx(0.2 * deviation, rel=1e-9)


MULTIPLE = "the gradient of the penalty is a multiple of that of the reward here, expected a world that tells"


@pytest.mark.parametrize(
    ("update", "at", "penalty"),
    [(torch.ones(1, 2).double(), bandit(2), "sequence_reverse_kl"), (REWARD, TREE, "expected_reward")],
)
def test_a_world_that_does_not_tell_them_apart(update: torch.Tensor, at: Any, penalty: str) -> None:
    with pytest.raises(ValueError, match=MULTIPLE):
        share(update, at, penalty)
