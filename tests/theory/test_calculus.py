"""From an estimator to the objective that it descends: every step against a derivation by hand."""

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Rational, log, sqrt

from kl_companion.divergences import DIVERGENCES, T, W, power_divergence
from kl_companion.estimators import ESTIMATORS
from kl_companion.estimators.sampled import k1, k2, k3, k5, k_lambda, kf_plus_plus
from kl_companion.ops import StopGradient
from kl_companion.theory import calculus
from kl_companion.theory.calculus import LOGP, REF_LOGP

HALF = Rational(1, 2)
POINTS = [Rational(1, 30), HALF, Rational(3, 2), 7]
REVERSE, FORWARD = T * log(T) - T + 1, T - 1 - log(T)


def equal(a, b, symbol=W):
    gap = sympy.sympify(a) - sympy.sympify(b)
    return all(abs(sympy.N(gap.subs(symbol, p), 40)) < sympy.Float("1e-30") for p in POINTS)


def test_the_full_gradient_of_an_unbiased_value_is_that_of_the_divergence():
    for estimator in (k1, k3):  # E[value] is reverse KL: both parts together must descend it
        full = calculus.gradient_weight(estimator, "full")
        assert calculus.same_weight(full, -log(W))
    assert not calculus.same_weight(calculus.gradient_weight(k2, "full"), -log(W))


def test_logarithms_of_products_are_written_as_sums():
    weight = calculus.gradient_weight(kf_plus_plus("jensen_shannon"), "reward")  # w f(1/w)
    assert weight == W * log(W) / 2 - (W + 1) * log((W + 1) / 2) / 2


def test_a_trace_keeps_the_stop_gradients():
    assert calculus.trace("k3") == calculus.trace(k3) == calculus.trace(ESTIMATORS["k3"])
    assert sympy.expand(calculus.trace(k1)) == LOGP - REF_LOGP
    assert calculus.trace("k4").has(StopGradient)
    assert not calculus.value("k4").has(StopGradient)


def test_log_probs_that_cancel_are_no_dependence():
    def roundabout(logp, ref_logp):
        return (logp**2 - ref_logp**2 - (logp - ref_logp) * 2 * ref_logp) / 2  # (logp - ref_logp)^2 / 2

    assert equal(calculus.value(roundabout), log(W) ** 2 / 2)
    assert equal(calculus.gradient_weight(roundabout), -log(W))

    def mixture(logp, ref_logp):
        return sympy.log(sympy.exp(logp) + sympy.exp(ref_logp)) - logp  # log(1 + w)

    assert equal(calculus.value(mixture), log(1 + W))
    assert equal(calculus.gradient_weight(mixture), -W / (1 + W))


# f'(t) = h(1/t) - h(1), integrated from 1 with pencil
@pytest.mark.parametrize(
    ("weight", "f", "names"),
    [
        (sympy.Integer(3), 0, {}),
        (-log(W), REVERSE, {"reverse_kl": 1}),
        (5 - log(W) / 2, REVERSE / 2, {"reverse_kl": HALF}),
        (1 - W, FORWARD, {"forward_kl": 1}),
        (W - 1 - log(W), REVERSE - FORWARD, {"reverse_kl": 1, "forward_kl": -1}),
        (1 / W, (T - 1) ** 2 / 2, {"pearson": HALF}),
        (-(W**2), (T - 1) ** 2 / T, {"neyman": 1}),
        (-sqrt(W), (sqrt(T) - 1) ** 2, {"squared_hellinger": 2}),
        (-log(1 + W), T * log(T) - (T + 1) * log((T + 1) / 2), {"jensen_shannon": 2}),
        (log(W) ** 2 / 2, T * log(T) ** 2 / 2 - T * log(T) + T - 1, None),
        (W * log(W), -(log(T) ** 2) / 2, None),
        (1 / W**2, (T**3 - 1) / 3 - (T - 1), None),
        (-(W**3), (1 - T**-2) / -2 + T - 1, None),
    ],
)
def test_implied_divergences(weight, f, names):
    got = calculus.implied_f(weight)
    assert equal(got, f, T)
    assert calculus.match_divergence(got) == names
    assert equal(calculus.implied_slope(weight), sympy.diff(f, T), T)


def test_the_kink_of_total_variation_is_kept():
    weight = calculus.gradient_weight(kf_plus_plus("total_variation"))
    got = calculus.implied_f(3 * weight)
    assert equal(got, 3 * sympy.Abs(T - 1) / 2, T)
    assert calculus.match_divergence(3 * sympy.Abs(T - 1) / 2) == {"total_variation": 3}
    assert calculus.match_divergence(sympy.Abs(T - 2) / 2 - HALF) is None  # the kink is elsewhere


def test_a_weight_with_another_kink_is_integrated_on_either_side():
    got = calculus.implied_f(sympy.Abs(1 - W))  # f' = |1 - 1/t|, which falls and then grows
    assert equal(got.subs(T, HALF), -log(2) + HALF)
    assert equal(got.subs(T, 3), 2 - log(3))
    assert equal(got.subs(T, 1), 0)
    assert got.args[0].cond == (T <= 1)  # f is read from below where both sides give the same


def test_an_integral_that_needs_a_dilogarithm():
    weight = calculus.gradient_weight(kf_plus_plus("jensen_shannon"), "reward")
    f = calculus.implied_f(weight)
    assert f.has(sympy.polylog)
    assert equal(f.subs(T, 1), 0)
    for p in (Rational(1, 3), Rational(5, 2)):
        e = Rational(1, 10**12)
        slope = (f.subs(T, p + e) - f.subs(T, p - e)) / (2 * e)
        assert abs(sympy.N(slope - calculus.implied_slope(weight).subs(T, p), 60)) < sympy.Float("1e-20")


@pytest.mark.parametrize(
    ("expr", "zero"),
    [
        (sympy.Integer(0), True),
        (log(W**3) - 3 * log(W), True),
        ((W - 1) * (W + 1) - W**2 + 1, True),
        (log(1 + T) - log(T) - log(1 + 1 / T), True),
        (sqrt(T**2 + 2 * T + 1) - T - 1, True),
        (sympy.Integer(1), False),
        (Rational(1, 10**30) * log(W), False),
        (Rational(1, 10**30), False),
        (Rational(2, 10**35), False),
        (Rational(5, 10**36), True),  # below the 35 digits that are looked at
        (T - 1, False),  # a root is not a zero function
        ((T - 1) * (T - Rational(1, 17)) * (T - 23), False),
        (sympy.Abs(T - 1) - T + 1, False),  # zero above one only
        (sympy.Abs(T - 1) + T - 1, False),  # zero below one only
    ],
)
def test_vanishing(expr, zero):
    assert calculus.vanishes(expr) is zero


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (-log(W), 7 - log(W), True),
        (log(W) ** 2 - log(W**2), (log(W) - 1) ** 2, True),
        (1 - W, -W, True),
        (-log(W), -log(W) * (1 + Rational(1, 10**12)), False),
        (-log(W), 1 - W, False),  # equal to first order at w = 1
        (1 - W, W - 1, False),
        (sympy.Integer(0), sympy.Integer(4), True),
        (1 / log(W), 2 / log(W), False),  # infinite at w = 1
    ],
)
def test_weights_are_the_same_up_to_a_constant(a, b, same):
    assert calculus.same_weight(a, b) is same
    assert calculus.same_weight(b, a) is same


@pytest.mark.parametrize(
    ("f", "names"),
    [
        (sympy.Integer(0), {}),
        (5 * (T - 1), {}),  # c (t - 1) changes no divergence
        (T * log(T), {"reverse_kl": 1}),
        (-log(T) + 9 * T, {"forward_kl": 1}),
        (-2 * REVERSE, {"reverse_kl": -2}),
        (0.3 * REVERSE, {"reverse_kl": Rational(3, 10)}),
        (REVERSE + FORWARD / 3, {"reverse_kl": 1, "forward_kl": Rational(1, 3)}),
        ((T - 1) ** 2 - (T - 1) ** 2 / T, {"pearson": 1, "neyman": -1}),
    ],
)
def test_matching_by_name(f, names):
    assert calculus.match_divergence(f) == names


# a slope that is zero where two of the compared points are, and at one
CLOSE = sympy.integrate(sympy.expand((T - 1) * (T - Rational(0.059)) * (T - 23)), T)


@pytest.mark.parametrize(
    "near",
    [
        REVERSE * (1 + Rational(1, 10**9)),
        REVERSE + Rational(1, 10**9) * T**4,
        REVERSE + Rational(1, 10**20) * log(T) ** 2,
        power_divergence(1.001).f,  # almost reverse KL
        T * log(T + Rational(1, 10**12)),
        REVERSE + FORWARD + Rational(1, 10**12) * CLOSE,
        log(T) ** 2 / 2,  # agrees with both KLs to second order
    ],
)
def test_a_near_miss_is_no_match(near):
    assert calculus.match_divergence(near) is None


def test_the_longest_sum_to_try():
    two = REVERSE + 2 * FORWARD
    three = two + DIVERGENCES["jensen_shannon"].f
    assert calculus.match_divergence(two, max_terms=1) is None
    assert calculus.match_divergence(two) == {"reverse_kl": 1, "forward_kl": 2}
    assert calculus.match_divergence(three) is None
    assert calculus.match_slope(sympy.diff(three, T)) is None
    assert calculus.match_divergence(three, max_terms=3) == {
        "reverse_kl": 1,
        "forward_kl": 2,
        "jensen_shannon": 1,
    }


@pytest.mark.parametrize(
    ("estimator", "divergence", "unbiased"),
    [
        (k1, "reverse_kl", True),
        (k1, "forward_kl", False),
        (k2, "reverse_kl", False),
        (k3, "reverse_kl", True),
        (k5, "forward_kl", True),
        (k5, "reverse_kl", False),
        (k_lambda(7), "reverse_kl", True),
        (kf_plus_plus("neyman"), "neyman", True),
        (kf_plus_plus("neyman"), "pearson", False),
        (kf_plus_plus("total_variation"), "total_variation", True),
        (lambda a, b: a - b + Rational(1, 10), "reverse_kl", False),  # off by a constant
        (lambda a, b: (a - b) * (1 + Rational(1, 10**12)), "reverse_kl", False),
        (lambda a, b: 2 * (a - b), "reverse_kl", False),
    ],
)
def test_unbiased_values(estimator, divergence, unbiased):
    assert calculus.value_is_unbiased(estimator, divergence) is unbiased


small = st.integers(-6, 6).map(lambda n: Rational(n, 4))


@pytest.mark.slow
@settings(max_examples=20)
@given(small, small, small)
def test_weights_add_and_so_do_their_divergences(a, b, constant):
    weight = -a * log(W) + b * (1 - W) + constant
    f = calculus.implied_f(weight)
    assert equal(f, a * REVERSE + b * FORWARD, T)
    found = calculus.match_divergence(f)  # the two, or one that is their sum if that has a name
    assert equal(sum(c * DIVERGENCES[n].f for n, c in found.items()), f, T)
    assert len(found) <= (a != 0) + (b != 0)
