"""Exact expectations and descent along them against an oracle that walks every leaf."""

import itertools
import math

import pytest
import torch

from kl_companion.losses import kl_loss, kl_reward, policy_gradient_loss
from kl_companion.rollout import leave_one_out
from kl_companion.tabular import (
    bandit,
    descend,
    expected_gradient,
    expected_value,
)
from tests.oracles import sampling, tokens, worlds
from tests.oracles.numeric import gradient
from tests.oracles.sampling import as_world
from tests.support.worlds import WORLDS, sampler


def agree(problem, ours, by_hand, size=1, at=None):
    """Value and gradient of our enumeration against the oracle's."""
    world, policy = as_world(problem), problem.logits if at is None else at

    def oracle(x):
        # chances come from the fixed policy: the expected gradient is not the gradient of the expectation
        return sampling.expected(world, x, problem.ref_logits, sampler(problem, policy), by_hand, size)

    value = expected_value(ours, problem, logits=at, group_size=size)
    assert value == pytest.approx(oracle(policy).item(), rel=1e-12, abs=1e-14)
    got = expected_gradient(ours, problem, logits=at, group_size=size)
    torch.testing.assert_close(got, gradient(oracle, policy), rtol=1e-10, atol=1e-13)


def k3_by_hand(group):
    total = 0.0
    for _, steps, ref in group:
        total = total + sum(torch.exp(b - a) - 1 - (b - a) for a, b in zip(steps, ref, strict=True))
    return total / len(group)


def k2_of_sequences_by_hand(group):
    total = 0.0
    for _, steps, ref in group:
        total = total + (sum(steps) - sum(ref)) ** 2 / 2
    return total / len(group)


# expectations


@pytest.mark.parametrize("name", WORLDS)
def test_token_level_k3(name):
    agree(WORLDS[name], lambda ro: kl_loss(ro, "k3", importance=None), k3_by_hand)


@pytest.mark.parametrize("name", WORLDS)
def test_sequence_level_k2(name):
    def loss(ro):
        return kl_loss(ro, "k2", level="sequence", importance=None)

    agree(WORLDS[name], loss, k2_of_sequences_by_hand)


@pytest.mark.parametrize("name", ["bandit_off_policy", "eos"])
def test_at_another_policy(name):
    problem = WORLDS[name]
    at = problem.logits * 0.5 - 0.3 * problem.ref_logits
    agree(problem, lambda ro: kl_loss(ro, "k3", importance=None), k3_by_hand, at=at)


@pytest.mark.parametrize("name", ["bandit", "off_policy"])
def test_the_score_function_loss(name):
    problem = WORLDS[name]
    reward = dict(zip(as_world(problem)["leaves"], problem.rewards.tolist(), strict=True))
    agree(
        problem,
        lambda ro: policy_gradient_loss(ro, ro.rewards),
        lambda group: -sum(reward[leaf] * sum(steps) for leaf, steps, _ in group) / len(group),
    )


def test_its_expected_gradient_is_that_of_the_expected_reward():
    problem = WORLDS["eos"]
    world = as_world(problem)
    got = expected_gradient(lambda ro: policy_gradient_loss(ro, ro.rewards), problem)

    def reward(x):
        return worlds.others(world, x, problem.ref_logits, x)["expected_reward"]

    torch.testing.assert_close(got, -gradient(reward, problem.logits), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "size"), [("bandit", 2), ("bandit_off_policy", 2), ("eos", 2), ("bandit", 3)]
)
def test_a_group_coupled_by_leave_one_out(name, size):
    problem = WORLDS[name]

    def ours(ro):
        penalty = kl_reward(ro, "k1", beta=0.3)
        return policy_gradient_loss(ro, leave_one_out(ro.rewards - penalty, ro.group_index))

    reward = dict(zip(as_world(problem)["leaves"], problem.rewards.tolist(), strict=True))

    def by_hand(group):
        values = [
            reward[leaf] - 0.3 * sum(a.item() - b.item() for a, b in zip(steps, ref, strict=True))
            for leaf, steps, ref in group
        ]
        advantages = tokens.without_oneself(values, [0] * len(group))
        return -sum(a * sum(steps) for a, (_, steps, _) in zip(advantages, group, strict=True)) / len(group)

    agree(problem, ours, by_hand, size)


@pytest.mark.parametrize("size", [2, 3])
def test_a_group_coupled_through_a_product(size):
    def by_hand(group):
        mean = sum(sum(steps) for _, steps, _ in group) / len(group)
        return mean**2 - k3_by_hand(group)

    agree(
        bandit(3, seed=6),
        lambda ro: ro.logp.sum(-1).mean() ** 2 - kl_loss(ro, "k3"),
        by_hand,
        size,
    )


def test_a_loss_without_coupling_does_not_see_the_group():
    problem = WORLDS["eos"]
    one, two = (expected_gradient(lambda ro: kl_loss(ro, "k3"), problem, group_size=g) for g in (1, 2))
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-15)
    # coupling is seen: the square of a mean over two is not that of one
    squares = [expected_value(lambda ro: ro.logp.sum(-1).mean() ** 2, problem, group_size=g) for g in (1, 2)]
    assert abs(squares[0] - squares[1]) > 1e-3


def test_sequences_of_probability_zero_are_left_out():
    problem = bandit(3, seed=0)
    lost = problem.logits.clone()
    lost[0, 1] = -2000.0  # exp(-2000) is zero, and its k3 would be infinite
    two = problem._replace(
        logits=lost[:, [0, 2]],
        ref_logits=problem.ref_logits[:, [0, 2]],
        sequences=problem.sequences[:2],
        completion_mask=problem.completion_mask[:2],
        rows=problem.rows[:2],
        rewards=problem.rewards[[0, 2]],
    )

    def entropy(ro):
        return (ro.logp * ro.completion_mask).sum()

    wanted = expected_value(entropy, two)
    assert expected_value(entropy, problem, logits=lost) == pytest.approx(wanted, rel=1e-12)
    assert math.isfinite(expected_value(lambda ro: kl_loss(ro, "k3"), problem, logits=lost))
    got = expected_gradient(lambda ro: kl_loss(ro, "k3"), problem, logits=lost)
    assert got.isfinite().all()
    assert got[0, 1].item() == 0.0


def test_a_loss_without_gradient_is_refused():
    assert math.isfinite(expected_value(lambda ro: ro.logp.detach().sum(), WORLDS["tree"]))
    other = torch.zeros((), dtype=torch.float64, requires_grad=True)  # a gradient, but not of the policy
    assert expected_gradient(lambda ro: other * 1.0, WORLDS["tree"]).abs().max() == 0


def test_scalars_may_have_axes():
    shaped = expected_value(lambda ro: kl_loss(ro, "k3").reshape(1, 1), WORLDS["tree"])
    assert shaped == expected_value(lambda ro: kl_loss(ro, "k3"), WORLDS["tree"])


# fields


# descent


def test_descent_lowers_the_divergence_it_descends():
    problem = WORLDS["eos"]
    world = as_world(problem)
    path = descend(lambda ro: kl_loss(ro, "k2", level="sequence"), problem, steps=6, lr=0.5)
    assert len(path) == 7
    assert torch.equal(path[0], problem.logits)
    values = [worlds.sequence_level(world, x, problem.ref_logits, "reverse_kl").item() for x in path]
    assert all(b < a for a, b in itertools.pairwise(values))
    assert values[-1] < 0.5 * values[0]
    step = path[0] - 0.5 * expected_gradient(lambda ro: kl_loss(ro, "k2", level="sequence"), problem)
    torch.testing.assert_close(path[1], step, rtol=1e-14, atol=0)


def of_advantages(advantages):
    """A loss whose value is minus the sum of the advantages and whose gradient is not."""
    return lambda ro: -(ro.logp.sum(-1) - ro.logp.sum(-1).detach()).exp() @ advantages(ro.rewards)


def test_advantages_that_sum_to_zero_and_mind_the_order():
    # whole numbers, so that the sum is 0 and no rounding of it
    problem = bandit(3, seed=0)._replace(rewards=torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64))
    ours = expected_gradient(of_advantages(lambda x: x.roll(1) * 2 - x - x.roll(2)), problem, group_size=3)
    # E[A_i s_i] is the only part of three that is not zero
    probability = problem.probabilities()
    scores = torch.eye(3, dtype=torch.float64) - probability
    wanted = 3 * (probability * problem.rewards) @ scores
    assert (ours - wanted).abs().max() < 1e-12


def test_advantages_that_sum_to_zero_are_counted_as_multisets():
    counted = []

    def standardized(x):
        counted.append(len(x))
        return (x - x.mean()) / (x.std(correction=0) + 1e-8)

    expected_gradient(of_advantages(standardized), bandit(3, seed=0), group_size=5)
    assert len(counted) < 2 * math.comb(7, 5)  # those, and some orders of some of them
