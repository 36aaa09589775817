"""Costs compared with the others of their group, and weighted scores, against every group of draws."""

import pytest
import torch

from kl_companion.losses import kl_terms
from kl_companion.tabular import (
    exact_moments,
)
from tests.oracles import sampling, worlds
from tests.oracles.numeric import gradient
from tests.oracles.sampling import BY_HAND, as_world
from tests.support.moments import WORLDS, agree, chances, of_cost, target


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
@pytest.mark.parametrize("name", ["bandit", "bandit_off_policy", "tree", "off_policy"])
def test_baselines_against_every_group(name, estimator, baseline, weighted):
    problem = WORLDS[name]
    costs, scores = of_cost(problem, BY_HAND[estimator][0], weighted)
    options = {"placement": "reward", "baseline": baseline, "weighted": weighted}
    for n in (2, 3, 4):
        every = sampling.estimates(chances(problem), costs, scores, n, sampling.baselined(baseline))
        agree(exact_moments(estimator, problem, n, **options), every, target(problem))


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_baselines_of_a_larger_tree_and_of_a_function(baseline):
    problem = WORLDS["eos"]
    world = as_world(problem)
    ratios = sampling.log_ratios(world, problem.logits, problem.ref_logits)
    costs = [x / len(leaf) for x, leaf in zip(ratios, world["leaves"], strict=True)]
    scores = sampling.scores(world, problem.logits)
    every = sampling.estimates(chances(problem), costs, scores, 2, sampling.baselined(baseline))
    options = {"placement": "reward", "baseline": baseline}
    found = exact_moments(lambda ro: kl_terms(ro, "k1", how="sequence_mean"), problem, 2, **options)
    agree(found, every, target(problem))


@pytest.mark.parametrize("name", ["bandit_off_policy", "off_policy"])
def test_weighted_scores_without_a_baseline(name):
    problem = WORLDS[name]
    costs, scores = of_cost(problem, BY_HAND["k1"][0], weighted=True)
    gradients = [c * s for c, s in zip(costs, scores, strict=True)]
    found = exact_moments("k1", problem, 2, placement="reward", weighted=True)
    agree(found, sampling.estimates(chances(problem), costs, gradients, 2), target(problem))
    assert found.gradient_bias < 1e-14  # the weight makes k1 in the reward unbiased off-policy
    assert exact_moments("k1", problem, placement="reward").gradient_bias > 1e-2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_a_baseline_takes_any_constant_out_without_losing_digits(baseline, weighted):
    options = {"placement": "reward", "baseline": baseline, "weighted": weighted}
    for problem in (WORLDS["bandit"], WORLDS["off_policy"]):
        near = exact_moments(lambda ro: kl_terms(ro, "k1"), problem, 5, **options)
        far = exact_moments(lambda ro: kl_terms(ro, "k1") + 1e6, problem, 5, **options)
        assert far.gradient_variance == pytest.approx(near.gradient_variance, rel=1e-8)
        torch.testing.assert_close(far.gradient, near.gradient, rtol=1e-8, atol=1e-9)


def test_rewards_as_costs_give_the_gradient_of_their_expectation():
    problem = WORLDS["eos"]
    world = as_world(problem)

    def reward(x):
        return worlds.others(world, x, problem.ref_logits, x)["expected_reward"]

    wanted = gradient(reward, problem.logits)
    for n, baseline, factor in ((1, None, 1), (4, "leave_one_out", 1), (4, "mean", 3 / 4)):
        found = exact_moments(lambda ro: ro.rewards, problem, n, placement="reward", baseline=baseline)
        torch.testing.assert_close(found.gradient, factor * wanted, rtol=1e-11, atol=1e-14)
