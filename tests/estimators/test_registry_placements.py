"""To be registered is to be tested: every estimator in every placement, every divergence."""

import pytest
import sympy
import torch

from kl_companion import bandit, kl_loss, kl_reward, policy_gradient_loss
from kl_companion.divergences import DIVERGENCES, T, W, torch_function
from kl_companion.estimators import ESTIMATORS
from kl_companion.tabular import expected_gradient, expected_value
from kl_companion.theory import calculus
from tests.oracles.worlds import GENERATORS
from tests.support.expected_verdicts import BIASED, EXPECTED, F_AT_TWO

SAMPLED = [n for n, e in ESTIMATORS.items() if e.inputs == "sampled"]
POINTS = [0.05, 0.4, 0.9, 1.3, 2.5, 11.0]
# by hand, or by the generator of a divergence; a new estimator is held to the enumerations below
EXPECTED_NOW = [n for n in SAMPLED if n in EXPECTED or n.startswith("kf_plus_plus(")]


def same(a, b):
    return all(
        abs(sympy.N(sympy.sympify(a).subs(W, p)) - sympy.N(sympy.sympify(b).subs(W, p))) < 1e-12
        for p in POINTS
    )


def test_every_verdict_by_hand_is_of_a_registered_estimator():
    assert set(EXPECTED) <= set(SAMPLED)
    assert {f"kf_plus_plus({name})" for name in DIVERGENCES} <= set(EXPECTED)


def test_every_registered_divergence_has_an_expected_number():
    assert set(F_AT_TWO) == set(DIVERGENCES)


@pytest.mark.parametrize("name", EXPECTED_NOW)
def test_symbols_agree_with_the_hand_derivation(name):
    value, weight, in_loss, in_reward = EXPECTED[name]
    assert same(calculus.value(name), value)
    h = calculus.gradient_weight(name)
    if weight is not None:
        assert same(h, weight)
    assert calculus.match_divergence(calculus.implied_f(h)) == in_loss
    reward = calculus.gradient_weight(name, "reward")
    assert same(reward, value)
    if in_reward is not ...:
        assert calculus.match_divergence(calculus.implied_f(reward)) == in_reward


def implied_gradient(problem, f):
    """Gradient of sum Q f(P/Q) on a bandit, outcome by outcome."""
    theta = problem.logits.clone().requires_grad_()
    p = torch.exp(theta[0] - torch.log(torch.exp(theta[0]).sum()))
    q = torch.exp(problem.ref_logits[0]) / torch.exp(problem.ref_logits[0]).sum()
    total = sum(q[i] * f(p[i] / q[i]) for i in range(len(q))) + 0 * p.sum()
    return torch.autograd.grad(total, theta)[0]


def mpmath_gradient(problem, slope):
    """The same from f' with SymPy's numbers, for generators that torch does not know (dilogarithm)."""
    p = problem.logits[0].softmax(-1)
    q = problem.ref_logits[0].softmax(-1)
    slopes = [float(slope.subs(T, float(a / b))) for a, b in zip(p, q, strict=True)]
    weight = torch.tensor(slopes, dtype=torch.float64)
    return (p * (weight - (p * weight).sum())).unsqueeze(0)


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("name", SAMPLED)
def test_enumerated_gradient_is_that_of_the_implied_divergence(name, placement):
    problem = bandit(5, seed=3)
    if placement == "loss":
        got = expected_gradient(lambda ro: kl_loss(ro, name), problem)
    else:
        got = expected_gradient(lambda ro: policy_gradient_loss(ro, -kl_reward(ro, name, beta=1.0)), problem)
    f = calculus.implied_f(calculus.gradient_weight(name, placement))
    assert abs(sympy.N(f.subs(T, 1))) < 1e-14
    wanted = (
        mpmath_gradient(problem, sympy.diff(f, T))
        if f.has(sympy.polylog)
        else implied_gradient(problem, torch_function(f, T))
    )
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SAMPLED)
def test_value_is_unbiased_exactly_when_the_enumeration_says_so(name):
    entry = ESTIMATORS[name]
    gaps = []
    for seed in range(3):
        problem = bandit(6, seed=seed)
        p, q = problem.logits[0].softmax(-1), problem.ref_logits[0].softmax(-1)
        truth = sum(b * GENERATORS[entry.target](a / b) for a, b in zip(p, q, strict=True))
        gaps.append(abs(expected_value(lambda ro: entry.fn(ro.logp, ro.ref_logp), problem) - truth.item()))
    assert (max(gaps) < 1e-12) == calculus.value_is_unbiased(name, entry.target)
    assert (max(gaps) < 1e-12) == (name not in BIASED), f"mean of {name} minus {entry.target}: {max(gaps)}"


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_estimators_are_targeted_and_sourced(name):
    entry = ESTIMATORS[name]
    assert entry.target in DIVERGENCES
    assert entry.source
    assert entry.name == name


@pytest.mark.parametrize("name", list(DIVERGENCES))
def test_divergence(name):
    d = DIVERGENCES[name]
    assert abs(sympy.N(d.f.subs(T, 2) - F_AT_TWO[name])) < 1e-14
    assert sympy.simplify(d.f.subs(T, 1)) == 0
    assert sympy.simplify(d.derivative.subs(T, 1)) == 0
    back = sympy.simplify(T * d.dual.subs(T, 1 / T)) - d.f
    assert all(abs(sympy.N(back.subs(T, p))) < 1e-12 for p in POINTS)
    assert all(sympy.N(d.f.subs(T, p)) >= 0 for p in POINTS)


@pytest.mark.parametrize("name", list(DIVERGENCES))
def test_weights_of_the_two_directions_are_dual(name):
    d = DIVERGENCES[name]
    dual_slope = sympy.diff(d.dual, T)
    for p in POINTS:
        assert abs(sympy.N(d.phi.subs(W, p) - d.derivative.subs(T, 1 / sympy.Float(p)))) < 1e-12
        assert abs(sympy.N(d.psi.subs(W, p)) - sympy.N(dual_slope.subs(T, 1 / sympy.Float(p)))) < 1e-10
