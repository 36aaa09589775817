"""Enumerated worlds and exact expectations against an oracle that walks every leaf."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.losses import kl_loss, kl_reward, policy_gradient_loss
from kl_companion.rollout import leave_one_out
from kl_companion.tabular import (
    bandit,
    expected_gradient,
    expected_value,
    prefix_tree,
)
from tests.oracles import sampling, tokens, worlds
from tests.oracles.numeric import gradient
from tests.oracles.sampling import as_world

WORLDS = {
    "bandit": bandit(4, seed=1),
    "bandit_off_policy": bandit(4, seed=2, off_policy=True),
    "tree": prefix_tree(3, 2, seed=3),
    "deep": prefix_tree(2, 4, seed=8, eos=True),
    "eos": prefix_tree(3, 2, seed=4, eos=True),
    "off_policy": prefix_tree(3, 2, seed=5, eos=True, off_policy=True, scale=2.0),
}


def sampler(problem, policy):
    return policy if problem.behavior_logits is None else problem.behavior_logits


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


# the worlds


@pytest.mark.parametrize("name", WORLDS)
def test_probabilities_sum_to_one_and_are_those_of_the_sampler(name):
    problem = WORLDS[name]
    got = problem.probabilities()
    assert got.sum().item() == pytest.approx(1, abs=1e-14)
    assert not got.requires_grad
    world = as_world(problem)
    wanted = [sampling.chance(world, sampler(problem, problem.logits), leaf) for leaf in world["leaves"]]
    assert got.tolist() == pytest.approx(wanted, rel=1e-13)


def test_probabilities_of_another_policy():
    problem, moved = WORLDS["tree"], WORLDS["tree"].logits.flip(0)
    world = as_world(problem)
    wanted = [sampling.chance(world, moved, leaf) for leaf in world["leaves"]]
    assert problem.probabilities(moved).tolist() == pytest.approx(wanted, rel=1e-13)
    fixed = WORLDS["off_policy"]
    assert torch.equal(fixed.probabilities(fixed.logits.flip(0)), fixed.probabilities())


def test_a_tree_lists_every_sequence_once():
    assert as_world(prefix_tree(2, 2))["leaves"] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    short = as_world(prefix_tree(2, 3, eos=True))
    assert sorted(short["leaves"]) == [(0,), (1, 0), (1, 1, 0), (1, 1, 1)]
    assert set(short["row"]) == {(), (1,), (1, 1)}
    assert len(WORLDS["eos"].sequences) == 1 + 2 * 3
    assert len(WORLDS["tree"].logits) == 1 + 3
    padding = prefix_tree(2, 3, eos=True)
    assert padding.sequences[padding.completion_mask == 0].eq(0).all()


def test_a_bandit_is_one_row():
    problem = bandit(7, seed=0, scale=0.0)
    assert problem.logits.shape == (1, 7)
    assert torch.equal(problem.logits, problem.ref_logits)
    assert problem.behavior_logits is None
    assert as_world(problem)["leaves"] == [(i,) for i in range(7)]
    double = bandit(7, seed=0, scale=2.0).logits - problem.logits
    torch.testing.assert_close(double, 2 * (bandit(7, seed=0).logits - problem.logits))
    assert bandit(seed=0).logits.shape == (1, 100)


def test_worlds_are_float64_and_their_seed_decides():
    for make in (bandit, prefix_tree):
        a, b, c = make(3, seed=1), make(3, seed=1), make(3, seed=2)
        assert torch.equal(a.logits, b.logits)
        assert not torch.equal(a.logits, c.logits)
        assert {x.dtype for x in (a.logits, a.ref_logits, a.rewards)} == {torch.float64}
        off = make(3, seed=1, off_policy=True)
        assert torch.equal(off.logits, a.logits)
        assert torch.equal(off.rewards, a.rewards)
        assert not torch.equal(off.behavior_logits, off.logits)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.25, 1.0, 4.0]), st.booleans(), st.booleans())
def test_log_ratios_of_a_tree_are_bounded(seed, scale, eos, off_policy):
    problem = prefix_tree(3, 2, seed=seed, scale=scale, eos=eos, off_policy=off_policy)
    p, q = problem.logits.log_softmax(-1), problem.ref_logits.log_softmax(-1)
    assert (p - q).abs().max() <= 2 * scale
    assert (problem.logits - problem.ref_logits).abs().max() <= scale
    if off_policy:
        assert (problem.behavior_logits - problem.logits).abs().max() <= scale / 2
    assert problem.probabilities().sum().item() == pytest.approx(1, abs=1e-13)


def test_a_rollout_of_chosen_sequences():
    problem = WORLDS["off_policy"]
    which = torch.tensor([4, 0, 4])
    rollout = problem.rollout(problem.logits, which)
    assert torch.equal(rollout.tokens, problem.sequences[which])
    assert torch.equal(rollout.rewards, problem.rewards[which])
    assert torch.equal(rollout.completion_mask, problem.completion_mask[which])
    table = worlds.log_probs(problem.behavior_logits)
    assert rollout.behavior_logp[0, 0].item() == pytest.approx(table[0, problem.sequences[4, 0]].item())
    assert problem.rollout(problem.logits).tokens.shape == problem.sequences.shape


# expectations


@pytest.mark.parametrize("name", WORLDS)
def test_token_level_k3(name):
    agree(WORLDS[name], lambda ro: kl_loss(ro, "k3"), k3_by_hand)


@pytest.mark.parametrize("name", WORLDS)
def test_sequence_level_k2(name):
    agree(WORLDS[name], lambda ro: kl_loss(ro, "k2", level="sequence"), k2_of_sequences_by_hand)


@pytest.mark.parametrize("name", ["bandit_off_policy", "eos"])
def test_at_another_policy(name):
    problem = WORLDS[name]
    at = problem.logits * 0.5 - 0.3 * problem.ref_logits
    agree(problem, lambda ro: kl_loss(ro, "k3"), k3_by_hand, at=at)


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


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        (lambda ro: ro.logp, r"the loss returned shape \[1, 2\], expected a scalar tensor"),
        (lambda ro: 0.5, "the loss returned float, expected a scalar tensor"),
        (lambda ro: None, "the loss returned NoneType, expected a scalar tensor"),
        (lambda ro: ro.logp.sum() * math.nan, "the loss is NaN on an enumerated batch, expected a number"),
    ],
)
def test_losses_that_are_no_number_are_refused(loss, wanted):
    for function in (expected_value, expected_gradient):
        with pytest.raises(ValueError, match=wanted):
            function(loss, WORLDS["tree"])


def test_a_loss_without_gradient_is_refused():
    with pytest.raises(
        ValueError, match="no gradient with respect to the policy, expected a function of logp"
    ):
        expected_gradient(lambda ro: ro.logp.detach().sum(), WORLDS["tree"])
    assert math.isfinite(expected_value(lambda ro: ro.logp.detach().sum(), WORLDS["tree"]))
    other = torch.zeros((), dtype=torch.float64, requires_grad=True)  # a gradient, but not of the policy
    assert expected_gradient(lambda ro: other * 1.0, WORLDS["tree"]).abs().max() == 0


def test_scalars_may_have_axes():
    shaped = expected_value(lambda ro: kl_loss(ro, "k3").reshape(1, 1), WORLDS["tree"])
    assert shaped == expected_value(lambda ro: kl_loss(ro, "k3"), WORLDS["tree"])


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (
            lambda: expected_value(kl_loss, bandit(100), group_size=3),
            r"100 sequences in groups of 3 are 1000000 evaluations, expected at most 100000",
        ),
        (lambda: expected_value(kl_loss, bandit(3), group_size=0), "group_size is 0, expected at least 1"),
        (
            lambda: expected_gradient(kl_loss, bandit(2), group_size=17),
            "131072 evaluations, expected at most",
        ),
        (lambda: prefix_tree(10, 6), r"10\^6 sequences, expected at most 100000 to enumerate"),
        (lambda: prefix_tree(1, 2), "vocab=1, length=2, scale=1.0: expected vocab of at least 2"),
        (lambda: prefix_tree(2, 0), "length=0.*length of at least 1"),
        (lambda: prefix_tree(2, 2, scale=-1.0), r"scale=-1\.0.*scale of 0 or more"),
        (lambda: prefix_tree(2, 2, scale=math.nan), "scale=nan.*scale of 0 or more"),
        (lambda: bandit(1), "vocab is 1, expected at least 2"),
        (lambda: bandit(3, scale=-0.5), r"scale is -0\.5, expected 0 or more"),
        (lambda: bandit(3, scale=math.nan), "scale is nan, expected 0 or more"),
    ],
)
def test_what_cannot_be_enumerated_is_refused(call, wanted):
    with pytest.raises(ValueError, match=wanted):
        call()
