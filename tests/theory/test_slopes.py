"""Slopes and their inverses in log t: against mpmath at both ends, clipped, refused."""

import math

import mpmath
import pytest
import sympy
import torch

from kl_companion.divergences import DIVERGENCES, T, get_divergence, inverse_slope, make_divergence
from kl_companion.theory.optima import optimal_policy
from kl_companion.theory.slopes import slope_of
from tests.support.derived import inverse_or_skip

SMOOTH = [name for name, d in DIVERGENCES.items() if d.smooth]
MORE = [*SMOOTH, "amari_alpha(-3)", "amari_alpha(0)", "amari_alpha(5)", "power_divergence(-2)"]
FAR = (-90.0, -20.0, -1.0, -1e-3, 0.0, 1e-9, 0.3, 5.0, 40.0, 200.0)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", MORE)
def test_the_slope_from_its_upper_end_has_every_digit(name):
    d = get_divergence(name)
    slope = slope_of(d)
    mpmath.mp.dps = 400
    low, high = d.slope_range
    exact = sympy.lambdify(T, d.derivative, "mpmath")
    for u in FAR:
        wanted = exact(mpmath.exp(mpmath.mpf(u)))
        if high.is_finite:
            wanted -= mpmath.mpf(sympy.N(high, 400))
        assert slope.of_log(numbers(u)).item() == pytest.approx(float(wanted), rel=1e-12, abs=1e-300), u
    assert slope.ceiling == (float(high) if high.is_finite else math.inf)
    assert slope.floor == (float(low) if low.is_finite else -math.inf)
    assert slope.origin == (slope.ceiling if high.is_finite else 0.0)


@pytest.mark.parametrize("name", MORE)
def test_the_inverse_gives_log_t_back(name):
    d = get_divergence(name)
    slope = slope_of(d)
    u = numbers(*(x for x in FAR if slope.floor == -math.inf or x > -10))
    torch.testing.assert_close(slope.log_of(slope.of_log(u)), u, rtol=1e-12, atol=1e-15)
    lacking = {type(x) for x in inverse_or_skip(d).atoms(sympy.Function)} - {sympy.log, sympy.exp}
    assert slope.closed == (not lacking)


@pytest.mark.parametrize("name", MORE)
def test_stiffness_is_the_derivative_of_the_slope(name):
    slope = slope_of(get_divergence(name))
    u = numbers(*(x for x in FAR[1:-1] if slope.floor == -math.inf or x > -10)).requires_grad_()
    (wanted,) = torch.autograd.grad(slope.of_log(u).sum(), u)
    torch.testing.assert_close(slope.log_stiffness(u.detach()), wanted.log(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_far_below_are_finite_or_clipped(name):
    slope = slope_of(get_divergence(name))
    found = slope.log_of(numbers(-1e13, -1e6))
    if slope.floor == -math.inf:
        assert found.isfinite().all()
        assert found[0] < found[1] < -6
    else:
        assert found.isneginf().all()
        floor = slope.floor - slope.origin
        assert slope.log_of(numbers(floor, floor - 0.5)).tolist() == [-math.inf] * 2
        assert slope.log_of(numbers(floor + 1e-9)).item() > -math.inf
    if slope.ceiling < math.inf:
        assert slope.log_of(numbers(0.0, 1.0)).tolist() == [math.inf, math.inf]


def test_jensen_shannon_beyond_the_range_of_exp():
    # 1/(e^(2c) - 1) at c = 1e6 and 1e-20
    slope = slope_of(get_divergence("jensen_shannon"))
    torch.testing.assert_close(slope.log_of(numbers(-1e6, -1e-20)), numbers(-2e6, -math.log(2e-20)))
    torch.testing.assert_close(slope.of_log(numbers(-1e6, 600.0)), numbers(-5e5, -math.exp(-600) / 2))


def test_a_closed_form_that_torch_lacks_is_replaced_by_halving():
    jeffreys = make_divergence("jeffreys_of_slopes", (T - 1) * sympy.log(T), source="test")
    assert inverse_slope(jeffreys).has(sympy.LambertW)
    slope = slope_of(jeffreys)
    assert not slope.closed
    u = numbers(-20.0, -1.0, 0.0, 1e-6, 3.0, 300.0)
    torch.testing.assert_close(slope.log_of(slope.of_log(u)), u, rtol=1e-13, atol=1e-13)


def test_a_slope_whose_powers_overflow_is_inverted_by_halving():
    # log t + (t - 1)(t + 5)/(t + 2)^2: the fraction is infinity over infinity from t = 1e154 on
    mixed = make_divergence("mixed_of_slopes", T * sympy.log(T) + (T - 1) ** 2 / (T + 2), source="test")
    slope = slope_of(mixed)
    assert not slope.closed
    u = numbers(-20.0, 0.0, 3.0, 300.0, 700.0, 1e6)
    t = u[:3].exp()
    torch.testing.assert_close(slope.log_of(numbers(-1e13)), numbers(-1e13))
    torch.testing.assert_close(slope.of_log(u[:3]), u[:3] + (t - 1) * (t + 5) / (t + 2) ** 2)
    torch.testing.assert_close(slope.of_log(u[3:]), u[3:] + 1)
    torch.testing.assert_close(slope.log_of(slope.of_log(u)), u, rtol=1e-13, atol=1e-13)


def test_a_kink_is_refused():
    with pytest.raises(ValueError, match="piecewise constant: it has no inverse"):
        inverse_slope(get_divergence("total_variation"))


@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("skewed_reverse_kl(0.1)", lambda t: (t / (0.9 + 0.1 * t)).log() - 0.09 * (t - 1) / (0.9 + 0.1 * t)),
        ("skewed_kl(0.2)", lambda t: 0.64 * (t - 1) / (0.2 + 0.8 * t)),
        ("generalized_jensen_shannon(0.9)", lambda t: 0.1 * (t / (0.9 + 0.1 * t)).log()),
        ("power_divergence(0.97)", lambda t: (t**-0.03 - 1) / -0.03),
    ],
)
def test_optima_of_families_have_the_slope_of_their_reward(name, slope):
    rewards = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    ref_logp = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    best = optimal_policy(rewards, ref_logp, beta=3.0, divergence=name)
    assert best.logp.exp().sum().item() == pytest.approx(1.0, rel=1e-12)
    shifted = rewards - 3.0 * slope((best.logp - ref_logp).exp())  # the same for all tokens
    assert shifted.tolist() == pytest.approx([shifted[0].item()] * 3, abs=1e-9)
