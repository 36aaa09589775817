"""What centering does to a KL in the reward, against sums over all groups in plain Python."""

import itertools
import math

import pytest
import torch

from kl_companion import bandit, center, exact_moments, expected_gradient, k1, k3
from kl_companion.losses import kl_reward, policy_gradient_loss
from kl_companion.rollout import importance_weight

TINY = 1e-9
TERMS = {"k1": lambda r: math.log(r), "k3": lambda r: 1 / r - 1 + math.log(r)}
WORLD = bandit(3, seed=1)
ELSEWHERE = bandit(3, seed=1, off_policy=True)


def probabilities(logits):
    weights = [math.exp(x) for x in logits[0].tolist()]
    return [w / sum(weights) for w in weights]


def centered_by_hand(x, how, eps=TINY):
    n, mean = len(x), sum(x) / len(x)
    if how == "none":
        return list(x)
    if how == "leave_one_out":
        return [x[i] - sum(x[j] for j in range(n) if j != i) / (n - 1) for i in range(n)]
    if how == "mean":
        return [y - mean for y in x]
    sd = math.sqrt(sum((y - mean) ** 2 for y in x) / (n - 1))
    return [(y - mean) / (sd + eps) for y in x]


def update_by_hand(costs, n, how, *, sampler=None, weights=None, only=None, eps=TINY):
    """Mean and variance of (1/n) sum_i rho_i A_i s_i over all n-tuples of arms, one after the other."""
    policy = probabilities(WORLD.logits)
    sampler, arms = sampler or policy, range(len(policy))
    mean, square = [0.0] * len(policy), 0.0
    for group in itertools.product(arms, repeat=n):
        if only is not None and not only(group):
            continue
        chance = math.prod(sampler[y] for y in group)
        advantage = centered_by_hand([costs[y] for y in group], how, eps)
        g = [0.0] * len(policy)
        for y, a in zip(group, advantage, strict=True):
            for v in arms:
                g[v] += (weights[y] if weights else 1.0) * a * ((v == y) - policy[v]) / n
        mean = [m + chance * x for m, x in zip(mean, g, strict=True)]
        square += chance * sum(x * x for x in g)
    return torch.tensor([mean], dtype=torch.float64), square - sum(m * m for m in mean)


def costs_by_hand(term):
    ratios = zip(probabilities(WORLD.logits), probabilities(WORLD.ref_logits), strict=True)
    return [TERMS[term](p / q) for p, q in ratios]


def updating(term, how, *, beta=1.0, rewards=None, rho=None, eps=TINY):
    """The loss of a trainer that puts the KL into the reward; ``rho`` is "outside", "inside" or None."""

    def loss(rollout):
        cost = kl_reward(rollout, term, beta=beta)
        if rewards is not None:
            cost = cost - rewards[rollout.tokens[:, 0]]
        weight = importance_weight(rollout, scope="sequence")[:, 0]
        advantages = center(cost * weight if rho == "inside" else cost, rollout.group_index, how, eps=eps)
        return policy_gradient_loss(rollout, -advantages * (weight if rho == "outside" else 1.0))

    return loss


# the numbers that center returns


@pytest.mark.parametrize("how", ["none", "mean", "leave_one_out", "standardized"])
def test_each_group_is_centered_on_its_own(how):
    x = torch.tensor([3.0, -1.0, 2.5, 7.0, 0.25, -4.0], dtype=torch.float64)
    prompts = torch.tensor([9, -2, 9, 9, -2, 9])
    got = center(x, prompts, how, eps=0.5)
    for prompt in (9, -2):
        inside = prompts == prompt
        wanted = centered_by_hand(x[inside].tolist(), how, 0.5)
        assert got[inside].tolist() == pytest.approx(wanted, rel=1e-14)


def test_equal_values_have_no_advantage():
    x, prompts = torch.full((4,), 0.3, dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    for how in ("mean", "leave_one_out", "standardized"):
        assert center(x, prompts, how).abs().max() < 1e-12


@pytest.mark.parametrize("how", ["leave_one_out", "standardized"])
def test_a_group_of_one_is_refused_by_name(how):
    with pytest.raises(ValueError, match=r"prompt 7 has one sequence, expected at least two.*" + how):
        center(torch.ones(3), torch.tensor([1, 7, 1]), how)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"x has shape \[0\], expected \[batch\] with at least one"):
        center(torch.ones(0), torch.zeros(0, dtype=torch.long), "mean")
    with pytest.raises(ValueError, match="prompt_index"):
        center(torch.ones(3), torch.zeros(2, dtype=torch.long), "mean")


# exact factors


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("how", ["none", "mean", "leave_one_out", "standardized"])
@pytest.mark.parametrize("term", TERMS)
def test_the_expected_update_is_the_sum_over_all_groups(term, how, n):
    wanted, _ = update_by_hand(costs_by_hand(term), n, how)
    got = expected_gradient(updating(term, how), WORLD, group_size=n)
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("how", ["mean", "leave_one_out"])
@pytest.mark.parametrize("term", TERMS)
def test_moments_from_pairs_are_those_of_all_groups(term, how, n):
    mean, variance = update_by_hand(costs_by_hand(term), n, how)
    once, _ = update_by_hand(costs_by_hand(term), 1, "none")
    factor = 1 - 1 / n if how == "mean" else 1
    torch.testing.assert_close(mean, factor * once, rtol=1e-12, atol=1e-15)
    got = exact_moments(term, WORLD, n, placement="reward", baseline=how)
    torch.testing.assert_close(got.gradient, mean, rtol=1e-12, atol=1e-15)
    assert got.gradient_variance == pytest.approx(variance, rel=1e-11)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("how", ["mean", "leave_one_out"])
def test_off_policy_the_factor_holds_with_the_ratio_outside_only(how, n):
    sampler = probabilities(ELSEWHERE.behavior_logits)
    rho = [p / m for p, m in zip(probabilities(WORLD.logits), sampler, strict=True)]
    once, _ = update_by_hand(costs_by_hand("k1"), 1, "none")
    factor = 1 - 1 / n if how == "mean" else 1
    by_hand, _ = update_by_hand(costs_by_hand("k1"), n, how, sampler=sampler, weights=rho)
    torch.testing.assert_close(by_hand, factor * once, rtol=1e-12, atol=1e-15)
    outside = expected_gradient(updating("k1", how, rho="outside"), ELSEWHERE, group_size=n)
    torch.testing.assert_close(outside, by_hand, rtol=1e-11, atol=1e-14)
    inside = expected_gradient(updating("k1", how, rho="inside"), ELSEWHERE, group_size=n)
    assert torch.cosine_similarity(inside, once).item() < 0.999


# groups divided by their standard deviation


@pytest.mark.parametrize("n", [2, 3])
def test_beta_drops_out_of_a_standardized_kl(n):
    fields = [
        expected_gradient(updating("k1", "standardized", beta=beta), WORLD, group_size=n)
        for beta in (1.0, 1e-3)
    ]
    assert fields[0].norm() > 0.1
    torch.testing.assert_close(*fields, rtol=1e-5, atol=0)
    linear = [
        expected_gradient(updating("k1", "mean", beta=beta), WORLD, group_size=n) for beta in (1.0, 1e-3)
    ]
    torch.testing.assert_close(1e-3 * linear[0], linear[1], rtol=1e-10, atol=0)


def test_eps_brings_beta_back_where_it_is_larger_than_the_spread():
    beta, eps = 1e-9, 1e-4
    got = expected_gradient(updating("k1", "standardized", beta=beta, eps=eps), WORLD, group_size=3)
    wanted = expected_gradient(updating("k1", "mean", beta=beta), WORLD, group_size=3) / eps
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=0)


def test_two_standardized_samples_are_a_sign():
    x = torch.tensor([0.3, -2.0, 5.0, 5.5], dtype=torch.float64)
    got = center(x, torch.tensor([0, 0, 1, 1]), "standardized", eps=0.0)
    half = 2**-0.5
    assert got.tolist() == pytest.approx([half, -half, -half, half], rel=1e-14)


def test_two_standardized_samples_follow_the_rank_of_the_log_ratio():
    p, x = probabilities(WORLD.logits), costs_by_hand("k1")
    rank = [
        sum(p[j] for j in range(3) if x[j] < x[i]) + sum(p[j] / 2 for j in range(3) if x[j] == x[i])
        for i in range(3)
    ]
    mean = sum(a * b for a, b in zip(p, rank, strict=True))
    wanted = torch.tensor([[2**0.5 * p[i] * (rank[i] - mean) for i in range(3)]], dtype=torch.float64)
    got = expected_gradient(updating("k1", "standardized"), WORLD, group_size=2)
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=0)


@pytest.mark.parametrize("n", [2, 3])
def test_with_two_rewards_the_kl_of_tied_groups_stays_when_beta_vanishes(n):
    rewards = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    r, p = rewards.tolist(), probabilities(WORLD.logits)

    def tied(group):
        return len({r[y] for y in group}) == 1

    left, _ = update_by_hand(costs_by_hand("k1"), n, "standardized", only=tied)
    got = expected_gradient(
        updating("k1", "standardized", beta=1e-5, rewards=rewards, eps=1e-12), WORLD, group_size=n
    )
    mean = sum(a * b for a, b in zip(p, r, strict=True))
    reward = torch.tensor([[p[i] * (r[i] - mean) for i in range(3)]], dtype=torch.float64)
    rest = got - left
    scale = (rest * reward).sum() / reward.square().sum()
    assert left.norm() > 0.01
    assert scale < 0
    torch.testing.assert_close(rest, scale * reward, rtol=0, atol=1e-4 * rest.norm().item())


def test_the_oracle_has_the_terms_of_the_package():
    ratio = torch.tensor([0.3, 1.7], dtype=torch.float64)
    for term, fn in (("k1", k1), ("k3", k3)):
        got = fn(ratio.log(), torch.zeros_like(ratio))
        assert got.tolist() == pytest.approx([TERMS[term](x) for x in ratio.tolist()], rel=1e-13)


def test_a_tied_group_gets_zeros_and_eps_is_not_negative():
    prompts = torch.tensor([0, 0, 1, 1])
    got = center(torch.tensor([2.0, 2.0, 1.0, 3.0]), prompts, "standardized", eps=0.0)
    assert got.tolist() == pytest.approx([0, 0, -(0.5**0.5), 0.5**0.5])
    with pytest.raises(ValueError, match=r"eps is -1\.0, expected a finite number of at least 0"):
        center(torch.ones(4), prompts, "standardized", eps=-1.0)
