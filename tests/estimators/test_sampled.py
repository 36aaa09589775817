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
from kl_companion.divergences import W, amari_alpha, get_divergence, make_divergence
from kl_companion.estimators import ESTIMATORS, get_estimator
from kl_companion.estimators.sampled import k1, k2, k3, k3_plus_plus, k4, k5, k_lambda, kf_plus_plus
from kl_companion.theory import calculus
from tests.oracles.numeric import exp_minus_line

QUICK = settings(max_examples=60)
SAMPLED = [n for n, e in ESTIMATORS.items() if e.inputs == "sampled"]
L2 = math.log(2)

# At pi = 1/4, pi_ref = 1/2: w = 2, log w = log 2. (value, derivative with respect to log pi.)
# d w / d log pi = -w; sg holds its argument still; r = 1 with derivative 1.
# Kf++: the value is w f(1/w) = 2 f(1/2), and the derivative of r w f(1/w) is f'(1/w) = f'(1/2).
AT_TWO = {
    "k1": (-L2, 1),
    "k2": (L2**2 / 2, -L2),
    "k3": (1 - L2, 1 - 2),
    "k3_plus_plus": (1 - L2, (1 - L2) + (1 - 2)),
    "k4": (-L2, -L2),
    "k5": (2 * L2, 1 - 2),
    "k_lambda(0.5)": (0.5 - L2, 1 - 0.5 * 2),
    "kf_plus_plus(reverse_kl)": (1 - L2, -L2),
    "kf_plus_plus(forward_kl)": (2 * L2 - 1, 1 - 2),
    "kf_plus_plus(jensen_shannon)": (L2 - 1.5 * math.log(1.5), math.log(2 / 3) / 2),
    "kf_plus_plus(squared_hellinger)": (1.5 - math.sqrt(2), (1 - math.sqrt(2)) / 2),
    "kf_plus_plus(pearson)": (0.5, -1),
    "kf_plus_plus(neyman)": (1, 1 - 4),
    "kf_plus_plus(total_variation)": (0.5, -0.5),
    "kf_plus_plus(amari_alpha(0.5))": (20 / 3 - 16 / 3 * 2**0.25, 4 - 4 * 2**0.25),
    "kf_plus_plus(power_divergence(1.5))": ((math.sqrt(8) - 2) / 3, math.sqrt(2) - 2),
}


def value_and_slope(fn, logp, ref_logp, dtype=torch.float64):
    x = torch.tensor(logp, dtype=dtype, requires_grad=True)
    out = fn(x, torch.tensor(ref_logp, dtype=dtype))
    return out.detach(), torch.autograd.grad(out.sum(), x)[0]


def test_hand_derived_numbers_are_of_registered_estimators():
    assert set(AT_TWO) <= set(SAMPLED)


@pytest.mark.parametrize("name", list(AT_TWO))
def test_value_and_gradient_of_one_sample_at_w_two(name):
    value, slope = value_and_slope(ESTIMATORS[name].fn, -2 * L2, -L2)
    assert value.item() == pytest.approx(AT_TWO[name][0], rel=1e-12)
    assert slope.item() == pytest.approx(AT_TWO[name][1], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", SAMPLED)
def test_equal_policies_give_zero(name):
    value, slope = value_and_slope(ESTIMATORS[name].fn, [-0.5, -20.0], [-0.5, -20.0])
    assert value.tolist() == [0.0, 0.0]
    kink = name == "kf_plus_plus(total_variation)"  # any slope in [-1/2, 1/2]
    # f'(1) = 0, except for k1 (weight 1) and k_lambda (weight 1 - lambda): their constants have mean zero
    wanted = {"k1": 1.0, "k_lambda(0.5)": 0.5}.get(name, 0.0)
    if name not in AT_TWO:
        wanted = float(calculus.gradient_weight(name).subs(W, 1))
    assert all(abs(s - wanted) <= (0.5 if kink else 0.0) for s in slope.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SAMPLED)
def test_shape_and_type_are_kept(name, dtype):
    logp = torch.linspace(-3, -1, 6, dtype=dtype).reshape(2, 3)
    out = ESTIMATORS[name].fn(logp, logp.flip(0))
    assert out.shape == (2, 3)
    assert out.dtype == dtype


@pytest.mark.parametrize("name", SAMPLED)
def test_probabilities_that_underflow_keep_value_and_gradient_finite(name):
    # exp(-1e4) is zero in float64: a token that the policy has lost, or that the reference has lost too
    for logp, ref_logp in ((-1e4, -1e4 - 1), (-1e4 - 1, -1e4), (-1e4, -1e4 + 40)):
        value, slope = value_and_slope(ESTIMATORS[name].fn, logp, ref_logp)
        near, near_slope = value_and_slope(ESTIMATORS[name].fn, -50.0, -50.0 + ref_logp - logp)
        assert value.isfinite()
        assert slope.isfinite()
        assert value.item() == pytest.approx(near.item(), rel=1e-12)
        assert slope.item() == pytest.approx(near_slope.item(), rel=1e-12)


# lim of the value as w -> 0 for the estimators that have one: t f(1/t) at 0, the cost of policy mass
# where the reference has none
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("k5", 0),
        ("kf_plus_plus(forward_kl)", 1),
        ("kf_plus_plus(jensen_shannon)", L2 / 2),
        ("kf_plus_plus(squared_hellinger)", 0.5),
        ("kf_plus_plus(neyman)", 1),
        ("kf_plus_plus(total_variation)", 0.5),
        ("kf_plus_plus(amari_alpha(0.5))", 4),
    ],
)
def test_a_reference_that_has_lost_the_token_costs_the_limit(name, limit):
    value, slope = value_and_slope(ESTIMATORS[name].fn, -1.0, -1e4)
    assert value.item() == pytest.approx(limit, rel=1e-12, abs=1e-12)
    assert slope.isfinite()


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "k3_plus_plus", "k4", "kf_plus_plus(reverse_kl)"])
def test_a_reference_that_has_lost_the_token_costs_its_log_ratio(name):
    value, slope = value_and_slope(ESTIMATORS[name].fn, -1.0, -1e4)
    x = 9999.0
    wanted = {"k1": x, "k2": x * x / 2, "k4": x}.get(name, x - 1)
    assert value.item() == pytest.approx(wanted, rel=1e-12)
    assert slope.isfinite()


@pytest.mark.parametrize("name", SAMPLED)
def test_a_policy_that_has_lost_the_token_never_gives_nan(name):
    # w = exp(2000) overflows: infinity is the honest answer of a value, NaN is not
    value, _ = value_and_slope(ESTIMATORS[name].fn, -2000.0, -1e-3)
    assert not value.isnan()


def test_k3_keeps_its_digits_near_one_in_float32():
    logp = torch.tensor([-1.0, -1.0, -0.5, -2.0], dtype=torch.float32)
    ref = logp + torch.tensor([1e-4, -1e-4, 1e-3, -1e-2], dtype=torch.float32)
    log_w = [float(x) for x in ref.double() - logp.double()]  # exact: the two floats are close
    wanted = torch.tensor([exp_minus_line(x) for x in log_w], dtype=torch.float64)
    for fn in (k3, k3_plus_plus):
        assert ((fn(logp, ref).double() - wanted) / wanted).abs().max() < 3e-3
    textbook = (ref - logp).exp() - 1 - (ref - logp)
    assert ((textbook.double() - wanted) / wanted).abs().max() > 0.9  # what expm1 is there for
    exact = kf_plus_plus("reverse_kl")(logp, ref).double()
    assert ((exact - wanted) / wanted).abs().max() < 3e-3


@pytest.mark.parametrize("name", [n for n in SAMPLED if not n.startswith("kf_plus_plus(total")])
def test_gradient_near_one_in_float32(name):
    # h(w) - h(1) is about -f''(1) log w there; the rounding of log w itself is 6e-8 / 1e-3
    logp, ref = [-1.0, -1.0], [-1.0 + 1e-3, -1.0 - 1e-3]
    single = torch.tensor(ref, dtype=torch.float32)
    _, got = value_and_slope(ESTIMATORS[name].fn, logp, single.tolist(), torch.float32)
    _, wanted = value_and_slope(ESTIMATORS[name].fn, logp, single.tolist())
    torch.testing.assert_close(got.double(), wanted, rtol=1e-3, atol=0)


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


@pytest.mark.parametrize(
    ("logp", "ref_logp", "wanted"),
    [
        (sympy.Symbol("a"), ONE, "logp is"),
        (ONE, sympy.Symbol("a"), "ref_logp is"),
        (ONE.int(), ONE, "logp has dtype torch.int32, expected floating point"),
        (ONE, ONE.int(), "ref_logp has dtype torch.int32, expected floating point"),
        (ONE, ONE[:2], "ref_logp has shape [2], expected [3] like logp"),
    ],
)
@pytest.mark.usefixtures("as_installed")
def test_no_pair_of_samples_is_refused_by_name_and_place(logp, ref_logp, wanted):
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}"):
        k3(logp, ref_logp)


def test_kf_plus_plus_takes_any_divergence():
    cubic = make_divergence("cubic", (RATIO - 1) ** 2 * (RATIO + 2), source="test")  # t^3 - 3t + 2
    value, slope = value_and_slope(kf_plus_plus(cubic), -2 * L2, -L2)
    assert value.item() == pytest.approx(2 * (1 / 8 - 3 / 2 + 2))  # 2 f(1/2)
    assert slope.item() == pytest.approx(3 / 4 - 3)  # f'(1/2)
    with pytest.raises(ValueError, match=r"unknown divergence 'pearsn'\. Did you mean 'pearson'"):
        kf_plus_plus("pearsn")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("k_lambda(x)", "k_lambda has the parameter 'x', expected a number"),
        ("k_lambda()", "k_lambda has the parameter '', expected a number"),
        ("k_lambda(nan)", "k_lambda has the parameter 'nan', expected a number"),
        ("kf_plus_plus(pearsn)", "unknown divergence 'pearsn'. Did you mean 'pearson'"),
        ("kf_plus_plus(amari_alpha(y))", "has the parameter 'y', expected a number"),
    ],
)
def test_families_refuse_what_they_cannot_read(name, wanted):
    with pytest.raises(ValueError, match=re.escape(wanted)):
        get_estimator(name)


def test_families_by_name():
    logp, ref = torch.tensor([[-1.0], [-0.4]], dtype=torch.float64)
    third = get_estimator("k_lambda(1/3)")
    assert (third.name, third.target, third.inputs) == ("k_lambda(1/3)", "reverse_kl", "sampled")
    assert third.fn(logp, ref).item() == pytest.approx((math.exp(0.6) - 1) / 3 - 0.6, rel=1e-14)
    nested = get_estimator("kf_plus_plus(amari_alpha(3))")  # half of pearson
    assert get_divergence(nested.target).f == amari_alpha(3).f
    assert nested.fn(logp, ref).item() == pytest.approx(math.exp(0.6) * (math.exp(-0.6) - 1) ** 2 / 2)


# h(w) of each fixed estimator, by hand: one line of calculus per line
WEIGHT = {
    k1: lambda u: 1.0,
    k2: lambda u: -u,
    k3: lambda u: -math.expm1(u),
    k3_plus_plus: lambda u: -u,
    k4: lambda u: -u,
    k5: lambda u: -math.expm1(u),
}


@QUICK
@given(st.sampled_from(list(WEIGHT)), st.floats(-30, -0.01), st.floats(-30, -0.01))
def test_gradient_weight_of_a_sample(fn, logp, ref_logp):
    _, slope = value_and_slope(fn, logp, ref_logp)
    u = ref_logp - logp
    scale = 1 + abs(u) + math.exp(u)
    assert slope.item() == pytest.approx(WEIGHT[fn](u), rel=1e-12, abs=4e-15 * scale)


@QUICK
@given(st.floats(-4, 4), st.floats(-5, -0.01), st.floats(-5, -0.01))
def test_k_lambda_is_linear_in_lambda(lam, logp, ref_logp):
    lam = float(Fraction(lam).limit_denominator(1000))
    u = ref_logp - logp
    value, slope = value_and_slope(k_lambda(lam), logp, ref_logp)
    assert value.item() == pytest.approx(lam * math.expm1(u) - u, rel=1e-11, abs=1e-12)
    assert slope.item() == pytest.approx(1 - lam * math.exp(u), rel=1e-11, abs=1e-12)


@QUICK
@given(st.sampled_from(SAMPLED), st.floats(-20, 20))
def test_float32_follows_float64(name, u):
    logp, ref_logp = (-30.0, float(torch.tensor(-30 + u, dtype=torch.float32)))
    single, slope = value_and_slope(ESTIMATORS[name].fn, logp, ref_logp, torch.float32)
    double, wanted = value_and_slope(ESTIMATORS[name].fn, logp, ref_logp)
    # near one k3 loses digits (see the module); where w is large, the two parts of a gradient cancel from w
    assert single.item() == pytest.approx(double.item(), rel=2e-4, abs=1e-6)
    assert slope.item() == pytest.approx(wanted.item(), rel=2e-4, abs=1e-6 * (1 + math.exp(u)))


@QUICK
@given(
    st.sampled_from([n for n in SAMPLED if n.startswith("kf_plus_plus") or n[:2] in ("k2", "k3")]),
    st.floats(-9, 9),
)
def test_estimators_that_are_never_negative(name, u):
    value, _ = value_and_slope(ESTIMATORS[name].fn, -10.0, -10.0 + u)
    assert value.item() >= -1e-15


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
