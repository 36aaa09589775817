"""Only f is typed in: what is derived from it, against numbers and formulas derived by hand."""

import math
from typing import NamedTuple

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Rational, exp, log, oo, sqrt

from kl_companion.divergences import DIVERGENCES, T, W, amari_alpha, power_divergence, torch_function
from kl_companion.divergences import registry as dv
from tests.support.derived import inverse_or_skip
from tests.support.symbolic import POINTS, equal, equal_functions

QUICK = settings(max_examples=60)
S = sympy.Symbol("s", real=True)
NAMES = list(DIVERGENCES)
HALF = Rational(1, 2)


class Hand(NamedTuple):
    """Derived with pencil from the normalized generator: f - f'(1)(t - 1)."""

    at_two: object  # f(2)
    slope_at_two: object  # f'(2)
    dual_at_two: object  # 2 f(1/2)
    curvature: object  # f''(1)
    at_zero: object  # f(0+)
    at_infinity: object  # lim f(t)/t
    slopes: tuple  # f'(0+), f'(oo)
    inverse: object  # solution of f'(t) = s


HAND = {
    # t log t - t + 1; f' = log t
    "reverse_kl": Hand(2 * log(2) - 1, log(2), 1 - log(2), 1, 1, oo, (-oo, oo), exp(S)),
    # t - 1 - log t; f' = 1 - 1/t
    "forward_kl": Hand(1 - log(2), HALF, 2 * log(2) - 1, 1, oo, 1, (-oo, 1), 1 / (1 - S)),
    # (t log t - (t + 1) log((t + 1)/2)) / 2; f' = log(2t/(t + 1)) / 2; its own dual
    "jensen_shannon": Hand(
        log(2) - Rational(3, 2) * log(Rational(3, 2)),
        log(Rational(4, 3)) / 2,
        log(2) - Rational(3, 2) * log(Rational(3, 2)),
        Rational(1, 4),
        log(2) / 2,
        log(2) / 2,
        (-oo, log(2) / 2),
        exp(2 * S) / (2 - exp(2 * S)),
    ),
    # (sqrt t - 1)^2 / 2; f' = (1 - 1/sqrt t) / 2; its own dual
    "squared_hellinger": Hand(
        Rational(3, 2) - sqrt(2),
        HALF - sqrt(2) / 4,
        Rational(3, 2) - sqrt(2),
        Rational(1, 4),
        HALF,
        HALF,
        (-oo, HALF),
        1 / (1 - 2 * S) ** 2,
    ),
    # (t - 1)^2; f' = 2(t - 1); the dual is neyman
    "pearson": Hand(1, 2, HALF, 2, 1, oo, (-2, oo), 1 + S / 2),
    # (t - 1)^2 / t; f' = 1 - 1/t^2; the dual is pearson
    "neyman": Hand(HALF, Rational(3, 4), 1, 2, oo, 1, (-oo, 1), 1 / sqrt(1 - S)),
    # |t - 1| / 2; f' = sign(t - 1) / 2; its own dual; no curvature, no inverse
    "total_variation": Hand(HALF, HALF, HALF, sympy.nan, HALF, HALF, (-HALF, HALF), None),
    # 16/3 (1 - t^(3/4)) + 4 (t - 1); f' = 4 (1 - t^(-1/4)); dual 16/3 (1 - t^(1/4)) + 4/3 (t - 1)
    "amari_alpha(0.5)": Hand(
        Rational(28, 3) - Rational(16, 3) * 2 ** Rational(3, 4),
        4 - 4 * 2 ** Rational(-1, 4),
        Rational(20, 3) - Rational(16, 3) * 2 ** Rational(1, 4),
        1,
        Rational(4, 3),
        4,
        (-oo, 4),
        (1 - S / 4) ** -4,
    ),
    # 4/3 (t^(3/2) - 1 - 3/2 (t - 1)); f' = 2 (sqrt t - 1)
    "power_divergence(1.5)": Hand(
        Rational(8, 3) * sqrt(2) - Rational(10, 3),
        2 * sqrt(2) - 2,
        Rational(2, 3) * sqrt(2) - Rational(2, 3),
        1,
        Rational(2, 3),
        oo,
        (-2, oo),
        (1 + S / 2) ** 2,
    ),
}


def test_hand_derived_numbers_are_of_registered_divergences():
    """A new one is held to f(2) by hand (`expected_verdicts`), and to the identities below."""
    assert set(HAND) <= set(NAMES)


@pytest.mark.parametrize("name", list(HAND))
def test_f_its_slope_and_its_dual_at_two(name):
    d, hand = DIVERGENCES[name], HAND[name]
    assert equal(d.f.subs(T, 2), hand.at_two)
    assert equal(d.derivative.subs(T, 2), hand.slope_at_two)
    assert equal(d.dual.subs(T, 2), hand.dual_at_two)


@pytest.mark.parametrize("name", NAMES)
def test_normalization_at_one(name):
    d = DIVERGENCES[name]
    for zero in (d.f, d.derivative, d.dual, *([sympy.diff(d.dual, T)] if d.smooth else [])):
        assert sympy.simplify(zero.subs(T, 1)) == 0


@pytest.mark.parametrize("name", list(HAND))
def test_curvature_edges_and_range_of_the_slope(name):
    d, hand = DIVERGENCES[name], HAND[name]
    assert equal(d.curvature, hand.curvature)
    assert equal(d.at_zero, hand.at_zero)
    assert equal(d.at_infinity, hand.at_infinity)
    assert all(equal(got, wanted) for got, wanted in zip(d.slope_range, hand.slopes, strict=True))
    assert d.smooth == (name != "total_variation")


@pytest.mark.parametrize("name", NAMES)
def test_dual_of_dual_is_itself_and_exchanges_the_edges(name):
    d = DIVERGENCES[name]
    derivative = None if d.smooth else sympy.sign(T - 1) / 2
    exchanged = dv.make_divergence("dual", d.dual, source="test", derivative=derivative)
    assert equal_functions(exchanged.dual, d.f)
    assert equal_functions(exchanged.phi, d.psi, W)  # psi is phi of the dual, as functions
    assert equal_functions(d.phi, exchanged.psi, W)
    assert equal(exchanged.at_zero, d.at_infinity)
    assert equal(exchanged.at_infinity, d.at_zero)
    assert equal(exchanged.curvature, d.curvature)


def test_duals_by_name():
    for a, b in [("reverse_kl", "forward_kl"), ("pearson", "neyman")]:
        assert equal_functions(DIVERGENCES[a].dual, DIVERGENCES[b].f)
    for own in ("jensen_shannon", "squared_hellinger", "total_variation"):
        assert equal_functions(DIVERGENCES[own].dual, DIVERGENCES[own].f)


@pytest.mark.parametrize("name", [n for n in NAMES if DIVERGENCES[n].smooth])
def test_inverse_of_the_slope(name):
    d, inverse = DIVERGENCES[name], inverse_or_skip(DIVERGENCES[name])
    for p in POINTS:
        assert equal(inverse.subs(S, d.derivative.subs(T, p)), p)
    for s in () if name not in HAND else (Rational(-3, 2), Rational(-1, 5), 0, Rational(1, 5)):
        assert equal(inverse.subs(S, s), HAND[name].inverse.subs(S, s))


def test_total_variation_has_no_inverse_slope():
    with pytest.raises(ValueError, match="'total_variation' is piecewise constant: it has no inverse"):
        dv.inverse_slope(DIVERGENCES["total_variation"])


def test_a_slope_without_closed_inverse_is_refused():
    odd = dv.make_divergence("odd", T * log(T) + (T - 1) ** 4 + sqrt(T) ** 3 - 1, source="test")
    with pytest.raises(ValueError, match=r"no closed inverse of f' = .* for 'odd'"):
        dv.inverse_slope(odd)


def test_members_of_the_alpha_family_have_names_of_their_own():
    assert equal_functions(amari_alpha(0).f, 4 * DIVERGENCES["squared_hellinger"].f)
    assert equal_functions(amari_alpha(3).f, DIVERGENCES["pearson"].f / 2)
    assert equal_functions(amari_alpha(-3).f, DIVERGENCES["neyman"].f / 2)


def test_registering_normalizes_the_slope_and_nothing_else(monkeypatch):
    monkeypatch.setattr(dv, "DIVERGENCES", dict(DIVERGENCES))
    d = dv.register_divergence("triple", 3 * T * log(T), source="by hand")
    assert dv.DIVERGENCES["triple"] is d
    assert equal_functions(d.f, 3 * (T * log(T) - T + 1))
    assert (d.name, d.source, d.curvature) == ("triple", "by hand", 3)
    assert dv.register_divergence("triple", 3 * T * log(T) + 5 * (T - 1), source="by hand").f == d.f
    with pytest.raises(ValueError, match=r"'triple' is registered already, as f = .*log"):
        dv.register_divergence("triple", 2 * T * log(T), source="by hand")
    assert dv.DIVERGENCES["triple"].f == d.f


@pytest.mark.parametrize(
    ("f", "wanted"),
    [
        ((T - 1) * sqrt(T - 1), "(not convex|not real)"),  # not a real number below t = 1
        # convex between powers of two, and f'' is -72.8 at 1.5
    ],
)
def test_what_is_not_a_generator_is_refused(f, wanted, monkeypatch):
    monkeypatch.setattr(dv, "DIVERGENCES", dict(DIVERGENCES))
    with pytest.raises(ValueError, match=wanted):
        dv.register_divergence("wrong", f, source="test")
    assert "wrong" not in dv.DIVERGENCES


def test_generators_that_numpy_cannot_compute_are_looked_at_too():
    assert dv.make_divergence("gamma", sympy.loggamma(T) + sympy.EulerGamma * (T - 1), source="test").smooth


def test_divergences_by_name():
    pearson = DIVERGENCES["pearson"]
    assert dv.get_divergence("pearson") is pearson
    assert dv.get_divergence(pearson) is pearson
    assert equal_functions(dv.get_divergence("amari_alpha(0.3)").f, amari_alpha(0.3).f)
    assert equal_functions(dv.get_divergence("power_divergence(1/3)").f, power_divergence(Rational(1, 3)).f)


def test_a_kink_times_itself_is_none():
    one = T - 1
    assert dv.tidy(sympy.Abs(one) * sympy.sign(one)) == one
    assert dv.tidy(sympy.Abs(one) + sympy.sign(one) * sympy.Abs(one)) == sympy.Abs(one) + one


@QUICK
@given(st.sampled_from(NAMES), st.floats(-8, 8), st.floats(-8, 8), st.floats(0, 1))
def test_generators_are_convex_and_never_negative(name, a, b, mix):
    f = torch_function(DIVERGENCES[name].f, T)
    s, t = math.exp(a), math.exp(b)
    low, high, between = f(torch.tensor([s, t, mix * s + (1 - mix) * t], dtype=torch.float64)).tolist()
    rounding = 1e-12 * (1 + max(s, t) * (1 + max(abs(a), abs(b))) + 1 / min(s, t) + abs(low) + abs(high))
    assert between <= mix * low + (1 - mix) * high + rounding
    assert min(low, high, between) >= -rounding


@settings(max_examples=20)  # the two are one family, as tested above
@given(st.sampled_from(["amari_alpha", "power_divergence"]), st.integers(-12, 12))
def test_members_of_the_families_are_normalized_with_curvature_one(family, quarter):
    d = dv.get_divergence(f"{family}({quarter / 4})")
    assert sympy.simplify(d.f.subs(T, 1)) == 0
    assert sympy.simplify(d.derivative.subs(T, 1)) == 0
    assert d.curvature == 1
