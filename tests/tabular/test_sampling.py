"""Sampled estimates: each is one that a group of draws can give, as often as it should be."""

import pytest
import torch

from kl_companion.losses import kl_terms
from kl_companion.tabular import bandit, exact_moments, prefix_tree, simulate, stack, truncate
from tests.oracles import sampling
from tests.oracles.sampling import BY_HAND, as_world

WORLDS = {
    "bandit": bandit(3, seed=1),
    "bandit_off_policy": bandit(3, seed=2, off_policy=True),
    "eos": prefix_tree(2, 3, seed=4, eos=True),
    "cut": truncate(prefix_tree(3, 2, seed=5), top_k=2),
}
CHOICES = [
    ("loss", None, 1),
    ("loss", None, 3),
    ("reward", None, 2),
    ("reward", "mean", 2),
    ("reward", "mean", 3),
    ("reward", "leave_one_out", 2),
    ("reward", "leave_one_out", 3),
]
REPEATS = 20_000


def every_estimate(problem, estimator, placement, baseline, n):
    """Probability, value and gradient of every group of n draws of positive probability."""
    world, (value, weight) = as_world(problem), BY_HAND[estimator]
    chances = [sampling.chance(world, problem.sampled_from, leaf) for leaf in world["leaves"]]
    ratios = sampling.log_ratios(world, problem.logits, problem.ref_logits)
    scores = sampling.scores(world, problem.logits)
    if baseline is None:
        factor = weight if placement == "loss" else value
        gradients, combine = (
            [factor(x) * s for x, s in zip(ratios, scores, strict=True)],
            sampling.mean_of,
        )
    else:
        gradients, combine = scores, sampling.baselined(baseline)
    kept = [i for i, c in enumerate(chances) if c > 0]
    return sampling.estimates(
        [chances[i] for i in kept], [value(ratios[i]) for i in kept], [gradients[i] for i in kept], n, combine
    )


def near(found, wanted, variance, repeats):
    """Within five standard errors, of the exact variance of one estimate."""
    error = (torch.as_tensor(found) - torch.as_tensor(wanted)).abs()
    assert (error <= 5 * (torch.as_tensor(variance) / repeats).sqrt() + 1e-12).all()


@pytest.mark.parametrize(("placement", "baseline", "n"), CHOICES)
@pytest.mark.parametrize("name", WORLDS)
def test_every_estimate_is_one_that_draws_can_give(name, placement, baseline, n):
    problem = WORLDS[name]
    _, values, gradients = every_estimate(problem, "k3", placement, baseline, n)
    listed = torch.cat([values[:, None], gradients], 1)
    found = simulate("k3", problem, n, repeats=100, seed=3, placement=placement, baseline=baseline)
    assert found.values.shape == (100,)
    assert found.gradients.shape == (100, *problem.logits.shape)
    rows = torch.cat([found.values[:, None], found.gradients.flatten(1)], 1)
    apart = (rows[:, None] - listed).abs().amax(-1)
    assert apart.amin(-1).max() < 1e-12
    assert apart.argmin(-1).unique().numel() > min(4, len(listed) // 4)  # and not always the same


@pytest.mark.parametrize(("placement", "baseline", "n"), CHOICES)
@pytest.mark.parametrize("name", WORLDS)
def test_frequencies_are_within_five_standard_errors(name, placement, baseline, n):
    problem = WORLDS[name]
    weights, values, gradients = every_estimate(problem, "k3", placement, baseline, n)
    value, value_variance, value_fourth = sampling.central(weights, values)
    slope, slope_variance, _ = sampling.central(weights, gradients)
    spread = (gradients - slope).square().sum(-1)
    trace, trace_variance, _ = sampling.central(weights, spread)
    options = {"placement": placement, "baseline": baseline}
    found = simulate("k3", problem, n, repeats=REPEATS, seed=11, **options)
    near(found.values.mean(), value, value_variance, REPEATS)
    near(found.gradients.flatten(1).mean(0), slope, slope_variance, REPEATS)
    # the squares have variances of their own: the fourth moments
    squares = (found.values - value) ** 2
    near(squares.mean(), value_variance, value_fourth - value_variance**2, REPEATS)
    near((found.gradients.flatten(1) - slope).square().sum(-1).mean(), trace, trace_variance, REPEATS)


@pytest.mark.parametrize(
    "estimator", ["k2", lambda ro: kl_terms(ro, "k3", importance="token", ratio="attached")]
)
@pytest.mark.parametrize("n", [1, 16, 64])
def test_samples_agree_with_the_exact_moments(estimator, n):
    problem = prefix_tree(3, 2, seed=8, eos=True, off_policy=True)
    exact = exact_moments(estimator, problem, n)
    found = simulate(estimator, problem, n, repeats=4000, seed=1)
    near(found.values.mean(), exact.value, exact.value_variance, 4000)
    off = (found.gradients.mean(0) - exact.gradient).square().sum().item()
    assert off < 25 * exact.gradient_variance / 4000


def test_the_samples_of_a_stack_belong_to_their_worlds():
    problems = [bandit(4, seed=s) for s in range(5)]
    found = simulate("k3", stack(problems), 4, repeats=3000, seed=0, placement="reward")
    assert found.values.shape == (5, 3000)
    assert found.gradients.shape == (5, 3000, 1, 4)
    for i, problem in enumerate(problems):
        exact = exact_moments("k3", problem, 4, placement="reward")
        near(found.values[i].mean(), exact.value, exact.value_variance, 3000)
        weights, _, gradients = every_estimate(problem, "k3", "reward", None, 4)
        slope, variance, _ = sampling.central(weights, gradients)
        near(found.gradients[i].flatten(1).mean(0), slope, variance, 3000)
    assert len({x.mean().item() for x in found.values}) == 5


def test_the_seed_decides():
    def once(seed):
        return simulate("k3", WORLDS["eos"], 3, repeats=50, seed=seed)

    a, b, c = once(1), once(1), once(2)
    assert torch.equal(a.values, b.values)
    assert torch.equal(a.gradients, b.gradients)
    assert not torch.equal(a.values, c.values)
    state = torch.random.get_rng_state()
    once(1)
    assert torch.equal(torch.random.get_rng_state(), state)  # and the global generator is left alone


def test_the_same_draws_serve_every_estimator():
    """k1 and k2 are functions of one log-ratio: with one draw each they tell which was drawn."""
    one, two = (simulate(e, WORLDS["bandit"], 1, repeats=200, seed=5) for e in ("k1", "k2"))
    torch.testing.assert_close(one.values**2 / 2, two.values, rtol=1e-13, atol=1e-15)


def test_one_repeat_is_an_estimate_too():
    found = simulate("k1", WORLDS["bandit"], 2, repeats=1, seed=0, placement="reward", baseline="mean")
    assert found.values.shape == (1,)
    assert found.gradients.shape == (1, 1, 3)


def test_what_is_never_sampled_is_never_drawn():
    problem = WORLDS["cut"]
    ones = simulate(lambda ro: ro.logp.sum(-1), problem, 1, repeats=5000, seed=2)
    world = as_world(problem)
    possible = {
        round(sum(sampling.steps(world, problem.logits, leaf)).item(), 9)
        for leaf in world["leaves"]
        if sampling.chance(world, problem.sampled_from, leaf) > 0
    }
    assert {round(x, 9) for x in ones.values.tolist()} == possible
