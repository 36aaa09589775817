"""Estimators from sampled log-probs: values and gradients derived by hand, at ordinary and extreme ratios."""

import math
import re
from fractions import Fraction

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.checks import check_samples
from kl_companion.divergences import T as RATIO
from kl_companion.divergences import amari_alpha, get_divergence, make_divergence
from kl_companion.estimators import ESTIMATORS, get_estimator
from kl_companion.estimators.sampled import k1, k2, k3, k3_plus_plus, k4, k5, k_lambda, kf_plus_plus

QUICK = settings(max_examples=60)
L2 = math.log(2)


def value_and_slope(fn, logp, ref_logp, dtype=torch.float64):
    x = torch.tensor(logp, dtype=dtype, requires_grad=True)
    out = fn(x, torch.tensor(ref_logp, dtype=dtype))
    return out.detach(), torch.autograd.grad(out.sum(), x)[0]


def test_k_lambda_runs_from_k1_to_k3():
    logp, ref = torch.tensor([[-1.0, -0.3], [-0.4, -2.0]], dtype=torch.float64)
    torch.testing.assert_close(k_lambda(0)(logp, ref), k1(logp, ref), rtol=0, atol=0)
    torch.testing.assert_close(k_lambda(1)(logp, ref), k3(logp, ref), rtol=0, atol=0)
    between = 0.7 * k1(logp, ref) + 0.3 * k3(logp, ref)
    torch.testing.assert_close(k_lambda(0.3)(logp, ref), between, rtol=1e-14, atol=1e-15)


def test_symbols_give_expressions():
    a, b = sympy.symbols("a b", real=True)
    assert k1(a, b) == a - b
    assert sympy.expand(k2(a, b) - (a - b) ** 2 / 2) == 0
    assert sympy.expand(k3(a, b) - (sympy.exp(b - a) - 1 - b + a)) == 0
    assert k_lambda(0.1)(a, b).coeff(a) == 1  # 1/10 and not 0.1000000000000000055
    assert k_lambda(0.1)(a, b).subs({a: 0, b: sympy.log(2)}) == sympy.Rational(1, 10) - sympy.log(2)
    for fn in (k3_plus_plus, k4, k5, kf_plus_plus("pearson")):
        assert isinstance(fn(a, b), sympy.Expr)


FAR = torch.tensor([-1.0, -3e38, -3e38])
ONE = torch.full((3,), -1.0)


NO_VALUES = [
    (torch.tensor([-1.0, -math.inf, -math.inf]), ONE, "logp is -inf at [1], expected finite"),
    (ONE, torch.tensor([-1.0, -1.0, math.nan]), "ref_logp is nan at [2], expected finite"),
    (FAR, -FAR, "ref_logp - logp is infinite in torch.float32 at [1], expected"),
]


@pytest.mark.parametrize(("logp", "ref_logp", "wanted"), NO_VALUES)
def test_values_are_checked_by_a_function_of_their_own(logp, ref_logp, wanted):
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}"):
        check_samples(logp, ref_logp)
    assert not k1(logp, ref_logp).isfinite().all()  # the formula does as torch does
    check_samples(ONE, -ONE)


def test_kf_plus_plus_takes_any_divergence():
    cubic = make_divergence("cubic", (RATIO - 1) ** 2 * (RATIO + 2), source="test")  # t^3 - 3t + 2
    value, slope = value_and_slope(kf_plus_plus(cubic), -2 * L2, -L2)
    assert value.item() == pytest.approx(2 * (1 / 8 - 3 / 2 + 2))  # 2 f(1/2)
    assert slope.item() == pytest.approx(3 / 4 - 3)  # f'(1/2)


def test_families_by_name():
    logp, ref = torch.tensor([[-1.0], [-0.4]], dtype=torch.float64)
    third = get_estimator("k_lambda(1/3)")
    assert (third.name, third.target, third.inputs) == ("k_lambda(1/3)", "reverse_kl", "sampled")
    assert third.fn(logp, ref).item() == pytest.approx((math.exp(0.6) - 1) / 3 - 0.6, rel=1e-14)
    nested = get_estimator("kf_plus_plus(amari_alpha(3))")  # half of pearson
    assert get_divergence(nested.target).f == amari_alpha(3).f
    assert nested.fn(logp, ref).item() == pytest.approx(math.exp(0.6) * (math.exp(-0.6) - 1) ** 2 / 2)


@QUICK
@given(st.floats(-4, 4), st.floats(-5, -0.01), st.floats(-5, -0.01))
def test_k_lambda_is_linear_in_lambda(lam, logp, ref_logp):
    lam = float(Fraction(lam).limit_denominator(1000))
    u = ref_logp - logp
    value, slope = value_and_slope(k_lambda(lam), logp, ref_logp)
    assert value.item() == pytest.approx(lam * math.expm1(u) - u, rel=1e-11, abs=1e-12)
    assert slope.item() == pytest.approx(1 - lam * math.exp(u), rel=1e-11, abs=1e-12)


# lim of the value as w -> 0, of the estimators of this package
INFINITE = [
    *("k1", "k2", "k3", "k3_plus_plus", "k4", "k_lambda(0.5)"),
    *("kf_plus_plus(reverse_kl)", "kf_plus_plus(pearson)", "kf_plus_plus(power_divergence(1.5))"),
]
LOST = dict.fromkeys(INFINITE, math.inf) | {
    "k5": 0.0,
    "kf_plus_plus(forward_kl)": 1.0,
    "kf_plus_plus(jensen_shannon)": L2 / 2,
    "kf_plus_plus(squared_hellinger)": 0.5,
    "kf_plus_plus(neyman)": 1.0,
    "kf_plus_plus(total_variation)": 0.5,
    "kf_plus_plus(amari_alpha(0.5))": 4.0,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("name", LOST)
def test_a_token_that_the_reference_cannot_draw_has_the_limits(name, dtype):
    value, slope = value_and_slope(ESTIMATORS[name].fn, [-1.0, -1.0], [-math.inf, -2.0], dtype)
    assert value[0].item() == pytest.approx(LOST[name], rel=2e-3, abs=1e-12)
    near, near_slope = value_and_slope(ESTIMATORS[name].fn, -1.0, -2.0, dtype)
    assert value[1].item() == pytest.approx(near.item(), rel=2e-3)  # its neighbor is as it was
    assert slope[1].item() == pytest.approx(near_slope.item(), rel=2e-3)
    # f'(t) as t -> infinity is the limit of f(t)/t; the fixed estimators by hand: h(w) at w = 0
    wanted = {"k1": 1.0, "k3": 1.0, "k5": 1.0, "k_lambda(0.5)": 1.0}.get(name, LOST[name])
    largest = torch.finfo(dtype).max
    assert not slope.isnan().any()
    assert min(slope[0].item(), largest) == pytest.approx(min(wanted, largest), rel=2e-3)
