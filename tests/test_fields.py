"""Fields of expected gradients: curl, exact moments and descent in enumerated worlds."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.losses import kl_loss, kl_reward, policy_gradient_loss
from kl_companion.rollout import leave_one_out
from kl_companion.tabular import (
    bandit,
    descend,
    exact_moments,
    expected_gradient,
    expected_value,
    prefix_tree,
)
from tests.oracles import sampling, worlds
from tests.oracles.numeric import gradient, jacobian
from tests.oracles.sampling import as_world

WORLDS = {
    "bandit": bandit(4, seed=1),
    "tree": prefix_tree(3, 2, seed=3),
    "eos": prefix_tree(3, 2, seed=4, eos=True),
    "off_policy": prefix_tree(3, 2, seed=5, eos=True, off_policy=True, scale=2.0),
}


# fields


def asymmetry(loss, problem):
    """Largest |J - J'| of the field of expected gradients: zero where it is the gradient of something."""
    matrix = jacobian(lambda x: expected_gradient(loss, problem, logits=x), problem.logits)
    return (matrix - matrix.T).abs().max().item()


def test_the_sequence_gradient_has_no_curl_and_the_token_field_has():
    problem = prefix_tree(2, 2, seed=3)
    assert asymmetry(lambda ro: kl_loss(ro, "k2", level="sequence"), problem) < 1e-8
    assert asymmetry(lambda ro: kl_loss(ro, "k1", credit=1.0), problem) < 1e-8
    assert asymmetry(lambda ro: kl_loss(ro, "k2"), problem) > 1e-2


def test_the_sequence_gradient_is_that_of_sequence_kl_and_the_token_field_of_frozen_visits():
    problem = WORLDS["eos"]
    world, ref = as_world(problem), problem.ref_logits

    def sequence(x):
        return worlds.sequence_level(world, x, ref, "reverse_kl")

    def token(x):
        return worlds.token_level(world, x, ref, problem.logits, "reverse_kl")

    wanted = gradient(sequence, problem.logits)
    for loss in (
        lambda ro: kl_loss(ro, "k2", level="sequence"),
        lambda ro: kl_loss(ro, "k1", credit=1.0),
        lambda ro: policy_gradient_loss(ro, -kl_reward(ro, "k1", beta=1.0)),
    ):
        torch.testing.assert_close(expected_gradient(loss, problem), wanted, rtol=1e-10, atol=1e-13)
    frozen = expected_gradient(lambda ro: kl_loss(ro, "k2"), problem)
    torch.testing.assert_close(frozen, gradient(token, problem.logits), rtol=1e-10, atol=1e-13)
    assert (frozen - wanted).abs().max() > 1e-2


# moments


def log_ratios(problem):
    world = as_world(problem)
    chances = [sampling.chance(world, problem.logits, leaf) for leaf in world["leaves"]]
    ratios = [
        math.fsum(
            a.item() - b.item()
            for a, b in zip(
                sampling.steps(world, problem.logits, leaf),
                sampling.steps(world, problem.ref_logits, leaf),
                strict=True,
            )
        )
        for leaf in world["leaves"]
    ]
    return world, chances, ratios


# value and gradient weight of one sequence in terms of x = log pi - log pi_ref
SAMPLE = {
    "k1": (lambda x: x, lambda x: 1.0),
    "k2": (lambda x: x * x / 2, lambda x: x),
    "k3": (lambda x: math.exp(-x) - 1 + x, lambda x: 1 - math.exp(-x)),
    "k5": (lambda x: -x * math.exp(-x), lambda x: 1 - math.exp(-x)),
}


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("estimator", SAMPLE)
@pytest.mark.parametrize("name", ["bandit", "eos"])
def test_moments_are_those_of_the_enumeration(name, estimator, placement):
    problem = WORLDS[name]
    world, chances, ratios = log_ratios(problem)
    value, weight = SAMPLE[estimator]
    got = exact_moments(estimator, problem, 3, placement=placement)
    mean, variance = sampling.moments(chances, [value(x) for x in ratios], 3)
    assert got.value == pytest.approx(mean, rel=1e-12)
    assert got.value_variance == pytest.approx(variance, rel=1e-9)
    factor = weight if placement == "loss" else value
    gradients = [
        factor(x) * gradient(lambda y, leaf=leaf: sum(sampling.steps(world, y, leaf)), problem.logits)
        for x, leaf in zip(ratios, world["leaves"], strict=True)
    ]
    wanted = sum(c * g for c, g in zip(chances, gradients, strict=True))
    torch.testing.assert_close(got.gradient, wanted, rtol=1e-10, atol=1e-13)
    spread = sum(
        sampling.moments(chances, [g.reshape(-1)[i].item() for g in gradients], 2)[1]
        for i in range(wanted.numel())
    )  # of the mean of two; n = 3 divides the same number by three
    assert got.gradient_variance == pytest.approx(spread * 2 / 3, rel=1e-9)


def test_one_sample_by_default():
    once, four = exact_moments("k1", WORLDS["bandit"]), exact_moments("k1", WORLDS["bandit"], 4)
    assert once.value_variance == pytest.approx(4 * four.value_variance, rel=1e-14)
    assert once.gradient_variance == pytest.approx(4 * four.gradient_variance, rel=1e-14)
    assert once.value == four.value


@pytest.mark.parametrize(
    ("arguments", "options", "wanted"),
    [
        (("exact_kl", "tree"), {}, r"got 'exact_kl' \(vocab\).*expected a sampled estimator"),
        (("k1", "off_policy"), {}, "off_policy=True.*expected .* an on-policy problem"),
        (("k1", "tree", 0), {}, "n=0.*n of at least 1"),
        (("k1", "tree"), {"placement": "full"}, "placement='full'.*placement 'loss' or 'reward'"),
        (("k8", "tree"), {}, "unknown estimator 'k8'"),
    ],
)
def test_moments_that_are_refused(arguments, options, wanted):
    estimator, world, *rest = arguments
    with pytest.raises(ValueError, match=wanted):
        exact_moments(estimator, WORLDS[world], *rest, **options)


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


def test_descent_of_a_group_loss():
    def loss(ro):
        return -policy_gradient_loss(ro, leave_one_out(ro.rewards, ro.group_index))

    problem = bandit(3, seed=0)
    path = descend(loss, problem, steps=2, lr=0.1, group_size=2)
    rewards = [(x.softmax(-1)[0] * problem.rewards).sum().item() for x in path]
    assert rewards[0] > rewards[1] > rewards[2]  # the sign is turned: it goes down


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"steps": 0, "lr": 0.1}, "steps=0, lr=0.1: expected at least one step and a positive step size"),
        ({"steps": 1, "lr": 0.0}, "lr=0.0: expected at least one step"),
        ({"steps": 1, "lr": -1.0}, "lr=-1.0"),
        ({"steps": 1, "lr": math.nan}, "lr=nan"),
        ({"steps": 1, "lr": math.inf}, "lr=inf"),
    ],
)
def test_descents_that_are_refused(options, wanted):
    with pytest.raises(ValueError, match=wanted):
        descend(lambda ro: kl_loss(ro), WORLDS["bandit"], **options)


def test_a_descent_that_leaves_the_numbers_says_when():
    with pytest.raises(ValueError, match=r"not finite after step 1: lower lr=1e\+308"):
        descend(lambda ro: kl_loss(ro, beta=1e10), WORLDS["bandit"], steps=2, lr=1e308)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.sampled_from(["k1", "k3", "k4"]), st.booleans())
def test_unbiased_estimators_average_to_sequence_kl(seed, estimator, eos):
    problem = prefix_tree(2, 2, seed=seed, eos=eos)
    wanted = worlds.sequence_level(as_world(problem), problem.logits, problem.ref_logits, "reverse_kl").item()
    for level in ("token", "sequence"):
        got = expected_value(lambda ro, level=level: kl_loss(ro, estimator, level=level), problem)
        assert got == pytest.approx(wanted, rel=1e-11, abs=1e-14)
