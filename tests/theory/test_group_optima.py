"""Where GRPO's updates come to rest: the printed closed forms, groups written out, and slopes by autograd."""

import itertools
import math

import pytest
import torch

from kl_companion.theory.group_optima import mean_group_deviation, success_at_rest
from tests.oracles.decisions import DecisionTree


def advantages(group):
    """Rewards minus their mean over their deviation with 1/G, 0 where all agree."""
    mean = sum(group) / len(group)
    spread = math.sqrt(sum((r - mean) ** 2 for r in group) / len(group))
    return [(r - mean) / spread if spread else 0.0 for r in group]


def slopes(policy, reference, rewards, beta, size):
    """Derivative of the printed objective in every probability, on groups of the policy itself."""
    new = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    value = torch.zeros((), dtype=torch.float64)
    for group in itertools.product(range(len(policy)), repeat=size):
        chance = math.prod(policy[o] for o in group)
        for o, a in zip(group, advantages([rewards[o] for o in group]), strict=True):
            w = reference[o] / new[o]
            value = value + chance / size * (new[o] / policy[o] * a - beta * (w - w.log() - 1))
    return torch.autograd.grad(value, new)[0]


def test_by_hand():
    # beta = 1: p^2 = q in groups of two; (1 + 2q + sqrt(1 + 4q(1-q))) / 4 in large ones
    assert success_at_rest(0.25, 1.0, 2).item() == pytest.approx(0.5, abs=1e-12)
    assert success_at_rest(0.4, 1.0, None).item() == pytest.approx(0.8, abs=1e-12)
    # groups of three: 0 or 3 right have none, 1 or 2 right have sqrt(2)/3
    assert mean_group_deviation(0.5, 3).item() == pytest.approx(0.75 * math.sqrt(2) / 3, abs=1e-15)
    assert mean_group_deviation(0.3, 1).item() == 0.0


@pytest.mark.parametrize("q", [1e-6, 0.1, 0.4, 0.95])
@pytest.mark.parametrize("beta", [1e-3, 0.04, 1.0, 30.0])
def test_closed_forms_of_two_and_of_many(q, beta):
    two = (1 - beta + math.sqrt((1 - beta) ** 2 + 4 * beta * q)) / 2
    b = beta**2
    many = (1 + 2 * b * q + math.sqrt(1 + 4 * b * q * (1 - q))) / (2 * (1 + b))
    assert success_at_rest(q, beta, 2).item() == pytest.approx(two, rel=1e-9)
    assert success_at_rest(q, beta, None).item() == pytest.approx(many, rel=1e-9)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("beta", [0.1, 0.7, 3.0])
def test_the_slopes_of_all_answers_are_equal_there(size, beta):
    reference, rewards = (0.3, 0.6, 0.1), (1.0, 0.0, 1.0)
    p = success_at_rest(0.4, beta, size).item()
    policy = [p * 0.75, 1 - p, p * 0.25]
    found = slopes(policy, reference, rewards, beta, size)
    assert (found - found.mean()).abs().max() < 1e-10
    moved = slopes([policy[0] * 0.9, policy[1] + policy[0] * 0.1, policy[2]], reference, rewards, beta, size)
    assert (moved - moved.mean()).abs().max() > 1e-3


def test_larger_groups_succeed_more_often_and_end_at_the_limit():
    found = [success_at_rest(0.1, 0.5, size).item() for size in (2, 3, 4, 8, 16, 64, None)]
    assert found == sorted(found)
    assert found[-1] - found[-2] < 0.01


def test_shapes_broadcast():
    found = success_at_rest(torch.tensor([0.1, 0.4]), torch.tensor([[0.1], [1.0], [4.0]]), 8)
    assert found.shape == (3, 2)
    assert found[1, 1].item() == pytest.approx(success_at_rest(0.4, 1.0, 8).item(), abs=1e-7)


@pytest.mark.parametrize(("size", "length"), [(2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize(("q", "beta"), [(0.5, 0.1), (0.8, 0.3)])
def test_grpo_with_token_k3_rests_there(q, beta, size, length):
    tree = DecisionTree(q, length)

    def loss(logp, ref_logp):
        p = logp.detach().sum(-1).exp()
        k3 = ((ref_logp - logp).exp() - 1 - ref_logp + logp).sum(-1)
        return (p * (beta * k3 - tree.advantages(p, size) * logp.sum(-1))).sum()

    rest = tree.rest(loss, 8.0)
    assert success_at_rest(q, beta, size, length).item() == pytest.approx(
        rest[-1].sum().exp().item(), abs=1e-7
    )


def test_equations_of_every_token_hold_in_large_groups():
    q, beta, length = 0.7, 0.2, 6
    success = success_at_rest(q, beta, None, length).item()
    later, pull = 1.0, 1 / math.sqrt(success * (1 - success))
    for _ in range(length):  # beta (p - q) = p (1 - p) pull later, solved by halving
        low, high = q, 1.0
        for _ in range(80):
            p = (low + high) / 2
            low, high = (low, p) if beta * (p - q) > p * (1 - p) * pull * later else (p, high)
        later *= p
    assert later == pytest.approx(success, abs=1e-12)


@pytest.mark.parametrize(("size", "q", "length"), [(2, 0.5, 20), (8, 0.9, 50), (3, 0.2, 7)])
def test_failures_of_tokens_add_up(size, q, length):
    beta = 1e-6
    about = beta * length * (1 - q) / math.sqrt(size - 1)
    assert 1 - success_at_rest(q, beta, size, length).item() == pytest.approx(about, rel=1e-3)


def test_long_answers_that_are_never_right_end_at_the_reference():
    for size in (2, 8):
        assert success_at_rest(0.5, 1.0, size, 3000).item() < 1e-30
