"""Exact moments against every group of draws, each draw's gradient by autograd; no sample is drawn."""

import pytest
import torch

from kl_companion.divergences import DIVERGENCES
from kl_companion.estimators import get_estimator
from kl_companion.losses import kl_terms
from kl_companion.tabular import (
    bandit,
    exact_moments,
)
from tests.oracles import sampling
from tests.oracles.sampling import BY_HAND, as_world
from tests.support.moments import WORLDS, agree, chances, of_cost, target

# without coupling


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("estimator", BY_HAND)
@pytest.mark.parametrize("name", WORLDS)
def test_moments_of_registered_estimators(name, estimator, placement):
    problem, (value, weight) = WORLDS[name], BY_HAND[estimator]
    costs, scores = of_cost(problem, value)
    factors, _ = of_cost(problem, value if placement == "reward" else weight)
    gradients = [f * s for f, s in zip(factors, scores, strict=True)]
    against = target(problem, get_estimator(estimator).target)
    for n in (1, 2) if len(costs) > 4 else (1, 3):
        every = sampling.estimates(chances(problem), costs, gradients, n)
        agree(exact_moments(estimator, problem, n, placement=placement), every, against)


def test_an_entry_is_as_good_as_its_name():
    for option in ({}, {"placement": "reward", "baseline": "mean"}):
        named = exact_moments("k5", WORLDS["eos"], 2, **option)
        entry = exact_moments(get_estimator("k5"), WORLDS["eos"], 2, **option)
        assert named.gradient_mse == entry.gradient_mse
        assert named.value_bias == entry.value_bias


def scoped(scope, t, count):
    return {"token": [t], "prefix": range(t + 1), "sequence": range(count)}[scope]


def k3_with_ratio(scope, ratio, clip):
    """Token-level k3 times rho, written for one leaf."""

    def loss(steps, ref, mu):
        total = torch.zeros((), dtype=torch.float64)
        for t in range(len(steps)):
            rho = torch.exp(sum(steps[s] - mu[s] for s in scoped(scope, t, len(steps))))
            if clip is not None and not clip[0] < rho < clip[1]:
                rho = torch.tensor(min(max(rho.item(), clip[0]), clip[1]), dtype=torch.float64)
            x = steps[t] - ref[t]
            total = total + (rho.detach() if ratio == "detached" else rho) * (torch.exp(-x) - 1 + x)
        return total

    return loss


@pytest.mark.parametrize("clip", [None, (0.7, 1.3)])
@pytest.mark.parametrize("ratio", ["detached", "attached"])
@pytest.mark.parametrize("scope", ["token", "prefix", "sequence"])
def test_moments_of_terms_with_a_ratio(scope, ratio, clip):
    for name in ("bandit_off_policy", "off_policy", "eos"):
        problem, n = WORLDS[name], 1 if name == "eos" else 2
        parts = (problem.logits, problem.ref_logits, problem.sampled_from)
        by_leaf = sampling.of_loss(as_world(problem), *parts, k3_with_ratio(scope, ratio, clip))

        def ours(ro):
            return kl_terms(ro, "k3", importance=scope, ratio=ratio, clip=clip)

        found = exact_moments(ours, problem, n)
        agree(found, sampling.estimates(chances(problem), *by_leaf, n), target(problem))


TERMS = {
    "sequence_mean": (
        {"how": "sequence_mean"},
        lambda a, b, m: sum((x - y) ** 2 / 2 for x, y in zip(a, b, strict=True)) / len(a),
    ),
    "constant": (
        {"how": "constant", "length": 5.0},
        lambda a, b, m: sum((x - y) ** 2 / 2 for x, y in zip(a, b, strict=True)) / 5,
    ),
    "sequence": ({"level": "sequence"}, lambda a, b, m: (sum(a) - sum(b)) ** 2 / 2),
    "credit": (
        {"credit": 0.5},
        lambda a, b, m: sum(
            sum(0.5 ** (s - t) * ((a[s] - b[s]) ** 2 / 2).detach() for s in range(t, len(a))) * a[t]
            for t in range(len(a))
        ),
    ),
}


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("name", ["eos", "off_policy"])
def test_moments_of_other_terms(name, terms):
    problem, (options, by_hand) = WORLDS[name], TERMS[terms]
    parts = (problem.logits, problem.ref_logits, problem.sampled_from)
    by_leaf = sampling.of_loss(as_world(problem), *parts, by_hand)
    every = sampling.estimates(chances(problem), *by_leaf, 2)
    found = exact_moments(lambda ro: kl_terms(ro, "k2", importance=None, **options), problem, 2)
    agree(found, every, target(problem))


def test_terms_of_a_truncated_policy_go_on_without_what_is_never_sampled():
    problem = WORLDS["cut"]
    world, sampler = as_world(problem), problem.sampled_from
    values, gradients = [], []
    for leaf, chance in zip(world["leaves"], chances(problem), strict=True):
        parts = (problem.logits, problem.ref_logits, sampler)
        one = {**world, "leaves": [leaf]}
        loss = k3_with_ratio("token", "attached", None) if chance else lambda a, b, m: 0 * sum(a)
        value, slope = sampling.of_loss(one, *parts, loss)
        values, gradients = values + value, gradients + slope

    def ours(ro):
        return kl_terms(ro, "k3", importance="token", ratio="attached", missing="ignore")

    agree(
        exact_moments(ours, problem),
        sampling.estimates(chances(problem), values, gradients, 1),
        target(problem),
    )


@pytest.mark.parametrize("name", ["bandit", "off_policy"])
@pytest.mark.parametrize("divergence", ["forward_kl", "pearson", "jensen_shannon"])
def test_the_target_decides_the_bias_and_nothing_else(divergence, name):
    problem = WORLDS[name]
    exact, slope = target(problem, divergence)
    own = exact_moments("k3", problem)
    for given in (divergence, DIVERGENCES[divergence]):
        found = exact_moments("k3", problem, target=given)
        assert found.value_bias == pytest.approx(own.value - exact, rel=1e-11)
        assert found.gradient_bias == pytest.approx((own.gradient - slope).norm().item(), rel=1e-11)
        assert (found.value_variance, found.gradient_variance) == (own.value_variance, own.gradient_variance)


def test_targets_by_default():
    problem, options = WORLDS["bandit"], {"rel": 0, "abs": 1e-14}
    for name in ("kf_plus_plus(pearson)", "k5", "k1"):
        assert exact_moments(name, problem).value_bias == pytest.approx(0, **options)
    assert exact_moments(lambda ro: kl_terms(ro, "k1"), problem).value_bias == pytest.approx(0, **options)
    forward = exact_moments(lambda ro: kl_terms(ro, "k5"), problem)  # a function has no target of its own
    exact = target(problem)[0] - target(problem, "forward_kl")[0]
    assert forward.value_bias == pytest.approx(-exact, rel=1e-11)


def test_a_policy_that_never_says_a_token_has_the_moments_of_the_smaller_vocabulary():
    small = bandit(3, seed=0)
    lost = torch.tensor([[-torch.inf]], dtype=torch.float64)
    wide = bandit(4, seed=0)._replace(
        logits=torch.cat([small.logits, lost], 1), ref_logits=torch.cat([small.ref_logits, lost + 1], 1)
    )
    wide = wide._replace(ref_logits=wide.ref_logits.clamp(min=-3.0))
    exact = wide.ref_logits.log_softmax(-1)[0, :3] - wide.logits.log_softmax(-1)[0, :3]
    kl = -(wide.logits.softmax(-1)[0, :3] * exact).sum().item()
    for options in ({}, {"placement": "reward"}, {"placement": "reward", "baseline": "mean"}):
        found = exact_moments("k1", wide, 2, **options)
        assert found.value == pytest.approx(kl, rel=1e-13)
        assert found.value_bias == pytest.approx(0, abs=1e-14)
        assert found.gradient[0, 3].item() == 0
        assert found.gradient_mse < float("inf")
    # nobody says it: the weight of what neither samples nor counts is no hole
    again = wide._replace(behavior_logits=wide.logits)
    weighted = exact_moments("k1", again, 2, placement="reward", weighted=True)
    plain = exact_moments("k1", wide, 2, placement="reward")
    assert weighted.gradient_variance == pytest.approx(plain.gradient_variance, rel=1e-13)
