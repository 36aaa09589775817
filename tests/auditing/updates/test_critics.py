"""Sums of GAE over own tokens, and a critic that is asked for answers of another world."""

import pytest
import torch

from kl_companion.auditing.updates.critics import at_last, critic_of, generalized
from tests.oracles.updates import estimates
from tests.support.updates import PROMPTS

MASK = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 0, 0, 0]])
VALUES = torch.tensor([[9.0, 0.5, 9.0, -0.25, 0.125], [0.5, 0.75, 9.0, 9.0, 9.0]]).double()


def test_rewards_are_at_the_last_own_token():
    found = at_last(torch.tensor([2.0, -1.0]), MASK)
    assert found.tolist() == [[0, 0, 0, 0, 2], [0, -1, 0, 0, 0]]


@pytest.mark.parametrize(("gamma", "lam"), [(1, 1), (0.9, 1), (1, 0.5), (0.9, 0.5), (0.9, 0), (0, 1)])
def test_tokens_between_own_ones_are_skipped(gamma, lam):
    x = torch.tensor([[7.0, 0.5, 7.0, -1.0, 2.0], [0.25, 1.0, 7.0, 7.0, 7.0]]).double()
    found = generalized(x, VALUES, MASK, gamma, lam) - VALUES
    for row, rewards, values, inside in zip(found, x, VALUES, MASK.bool(), strict=True):
        by_hand = estimates(rewards[inside].tolist(), values[inside].tolist(), gamma, lam)
        assert row[inside].tolist() == pytest.approx(by_hand, abs=1e-12)


def test_a_critic_knows_the_answers_of_its_world_alone():
    at, other = PROMPTS["on-policy"].problem, PROMPTS["tree"].problem
    values = critic_of(at, torch.ones_like(at.completion_mask))
    assert (values(at.rollout(at.logits))[at.completion_mask.bool()] == 1).all()
    with pytest.raises(ValueError, match="got answers that the critic's world has not"):
        values(other.rollout(other.logits))
