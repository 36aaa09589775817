"""Several sizes and worlds at once, fields, covariances, and what is refused."""

import pytest
import torch

from kl_companion.losses import kl_terms
from kl_companion.tabular import (
    bandit,
    draw_statistics,
    exact_covariance,
    exact_field,
    exact_moments,
    expected_gradient,
    prefix_tree,
    stack,
)
from tests.oracles.sampling import BY_HAND
from tests.support.moments import WORLDS, chances, of_cost

# sizes and stacks

STACKS = {
    "bandit": [bandit(4, seed=s) for s in range(3)],
    "tree": [prefix_tree(2, 2, seed=s, eos=True) for s in range(2)],
    "off_policy": [prefix_tree(2, 2, seed=s, off_policy=True) for s in range(3)],
}
CHOICES = [
    ("k3", {}),
    ("k3", {"placement": "reward"}),
    ("k5", {"target": "pearson"}),
    ("k1", {"placement": "reward", "baseline": "mean"}),
    ("k1", {"placement": "reward", "baseline": "leave_one_out", "weighted": True}),
    (lambda ro: kl_terms(ro, "k2", importance="prefix", ratio="attached"), {}),
    (lambda ro: ro.rewards + ro.logp.sum(-1), {"placement": "reward"}),
]


@pytest.mark.parametrize(("estimator", "options"), CHOICES)
@pytest.mark.parametrize("name", STACKS)
def test_several_sizes_and_worlds_at_once(name, estimator, options):
    problems, sizes = STACKS[name], torch.tensor([2, 3, 17])
    many = stack(problems)
    both = draw_statistics(estimator, many, **options).at(sizes)
    at_three = exact_moments(estimator, many, 3, **options)
    shape, table = (len(problems), len(sizes)), many.logits.shape[1:]
    assert both.gradient.shape == (*shape, *table)
    assert not any(x.requires_grad for x in (*both, *at_three))
    assert at_three.gradient.shape == (len(problems), *table)
    for w, problem in enumerate(problems):
        each = draw_statistics(estimator, problem, **options).at(sizes)
        for i, n in enumerate(sizes.tolist()):
            one = exact_moments(estimator, problem, n, **options)
            for field in (*one._fields, "value_mse", "gradient_mse", "gradient_rmse"):
                wanted = torch.as_tensor(getattr(one, field), dtype=torch.float64)
                found = [getattr(both, field)[w, i], getattr(each, field)[i]]
                if n == 3:
                    found.append(getattr(at_three, field)[w])
                for x in found:
                    torch.testing.assert_close(x, wanted, rtol=1e-11, atol=1e-15)


def test_one_draw_by_default():
    once, four = exact_moments("k1", WORLDS["bandit"]), exact_moments("k1", WORLDS["bandit"], 4)
    assert once.value_variance == pytest.approx(4 * four.value_variance, rel=1e-14)
    assert once.gradient_variance == pytest.approx(4 * four.gradient_variance, rel=1e-14)
    assert once.value == four.value


# fields and covariances


def k4_with_ratio(ro):
    return kl_terms(ro, "k4", importance="prefix", ratio="attached")


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("estimator", ["k3", k4_with_ratio])
@pytest.mark.parametrize("name", ["bandit_off_policy", "eos", "off_policy"])
def test_the_field_is_that_of_the_enumeration(name, estimator, placement):
    problem = WORLDS[name]

    def loss(ro):
        plain = {"level": "sequence", "importance": None}
        terms = estimator if callable(estimator) else lambda r: kl_terms(r, estimator, **plain)
        if placement == "loss":
            return terms(ro).mean()
        return (terms(ro).detach() * (ro.logp * ro.completion_mask).sum(-1)).mean()

    moved = problem.logits * 0.5 - 0.3 * problem.ref_logits
    for at in (None, moved):
        found = exact_field(estimator, problem, logits=at, placement=placement)
        wanted = expected_gradient(loss, problem, logits=at)
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-14)
    leaf = moved.clone().requires_grad_()
    assert not exact_field(estimator, problem, logits=leaf, placement=placement).requires_grad
    same = exact_moments(estimator, problem, placement=placement).gradient
    assert torch.equal(exact_field(estimator, problem, placement=placement), same)


def test_the_field_of_a_stack():
    many = stack(STACKS["tree"])
    found = exact_field("k2", many)
    for w, problem in enumerate(STACKS["tree"]):
        torch.testing.assert_close(found[w], exact_field("k2", problem), rtol=1e-13, atol=1e-15)
    flipped = exact_field("k2", many, logits=many.logits.flip(0))
    alone = exact_field("k2", STACKS["tree"][0], logits=STACKS["tree"][1].logits)
    torch.testing.assert_close(flipped[0], alone, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("name", ["bandit", "eos", "off_policy"])
def test_the_covariance_is_that_of_the_enumeration(name, placement):
    problem, (value, weight) = WORLDS[name], BY_HAND["k3"]
    factors, scores = of_cost(problem, value if placement == "reward" else weight)
    wanted = torch.zeros(problem.logits.numel(), problem.logits.numel(), dtype=torch.float64)
    mean = sum(c * f * s for c, f, s in zip(chances(problem), factors, scores, strict=True))
    for c, f, s in zip(chances(problem), factors, scores, strict=True):
        wanted += c * torch.outer(f * s - mean, f * s - mean)
    found = exact_covariance("k3", problem, placement=placement)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-14)
    if placement == "loss":
        assert torch.equal(exact_covariance("k3", problem), found)  # the default
    trace = exact_moments("k3", problem, placement=placement).gradient_variance
    assert found.trace().item() == pytest.approx(trace, rel=1e-11)
    many = exact_covariance("k3", stack([problem, problem]), placement=placement)
    torch.testing.assert_close(many, torch.stack([found, found]), rtol=1e-13, atol=1e-16)


def test_every_size_has_to_be_large_enough():
    draws = draw_statistics("k1", WORLDS["tree"], placement="reward", baseline="leave_one_out")
    assert draws.at(torch.tensor([4, 2])).value.shape == (2,)


def test_terms_without_gradient_have_a_value_and_a_gradient_of_zero():
    found = exact_moments(lambda ro: ro.rewards, WORLDS["eos"])
    assert found.gradient.abs().max() == 0
    wanted = sum(c * r for c, r in zip(chances(WORLDS["eos"]), WORLDS["eos"].rewards.tolist(), strict=True))
    assert found.value == pytest.approx(wanted, rel=1e-13)
