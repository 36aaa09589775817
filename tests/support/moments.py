"""Moments of every group of draws beside the exact ones: what the tests of moments share."""

import pytest
import torch

from kl_companion.tabular import bandit, prefix_tree, truncate
from tests.oracles import sampling, worlds
from tests.oracles.numeric import gradient
from tests.oracles.sampling import as_world

WORLDS = {
    "bandit": bandit(4, seed=1),
    "bandit_off_policy": bandit(3, seed=2, off_policy=True),
    "tree": prefix_tree(2, 2, seed=3),
    "eos": prefix_tree(3, 2, seed=4, eos=True),
    "off_policy": prefix_tree(2, 3, seed=5, eos=True, off_policy=True, scale=2.0),
    "cut": truncate(prefix_tree(3, 2, seed=6, eos=True), top_k=2),
}


def chances(problem):
    world = as_world(problem)
    return [sampling.chance(world, problem.sampled_from, leaf) for leaf in world["leaves"]]


def of_cost(problem, value, weighted=False):
    """Values of all sequences, and what multiplies them in the reward: the score, or rho times it."""
    world = as_world(problem)
    costs = [value(x) for x in sampling.log_ratios(world, problem.logits, problem.ref_logits)]
    scores = sampling.scores(world, problem.logits)
    if weighted:
        rho = sampling.log_ratios(world, problem.logits, problem.sampled_from)
        scores = [r.exp() * s for r, s in zip(rho, scores, strict=True)]
    return costs, scores


def target(problem, name="reverse_kl"):
    """A divergence of whole sequences and its gradient."""
    world = as_world(problem)

    def exact(x):
        return worlds.sequence_level(world, x, problem.ref_logits, name)

    return exact(problem.logits).item(), gradient(exact, problem.logits)


def agree(found, every, against):
    """All moments against the list of estimates and the divergence they are measured against."""
    weights, values, gradients = every
    value, value_variance, _ = sampling.central(weights, values)
    slope, slope_variance, _ = sampling.central(weights, gradients)
    exact, exact_slope = against
    assert found.value == pytest.approx(value.item(), rel=1e-11, abs=1e-14)
    assert found.value_bias == pytest.approx(value.item() - exact, rel=1e-9, abs=1e-13)
    assert found.value_variance == pytest.approx(value_variance.item(), rel=1e-10, abs=1e-15)
    torch.testing.assert_close(found.gradient.flatten(), slope, rtol=1e-10, atol=1e-13)
    bias = (slope - exact_slope.flatten()).norm().item()
    assert found.gradient_bias == pytest.approx(bias, rel=1e-9, abs=1e-13)
    assert found.gradient_variance == pytest.approx(slope_variance.sum().item(), rel=1e-9, abs=1e-14)
    value_mse = (weights * (values - exact) ** 2).sum().item()
    gradient_mse = (weights * (gradients - exact_slope.flatten()).square().sum(-1)).sum().item()
    assert found.value_mse == pytest.approx(value_mse, rel=1e-9, abs=1e-14)
    assert found.gradient_mse == pytest.approx(gradient_mse, rel=1e-9, abs=1e-14)
    assert found.gradient_rmse == pytest.approx(gradient_mse**0.5, rel=1e-9, abs=1e-7)
    assert {type(x) for n, x in found._asdict().items() if n != "gradient"} == {float}
