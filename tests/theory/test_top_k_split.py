"""What a split leaves behind: by hand for every head and tail, and by enumeration."""

import pytest
import sympy
import torch

from kl_companion.divergences import DIVERGENCES, W, make_divergence
from kl_companion.divergences import T as RATIO
from kl_companion.estimators.sampled import FORMS, k1, k2, k3, k3_plus_plus, k4, k5, kf_plus_plus
from kl_companion.ops import stop_gradient
from kl_companion.theory.calculus import gradient_weight, same_weight
from kl_companion.theory.top_k_split import head_entry, split, split_of
from tests.oracles import top_k as oracle
from tests.oracles.numeric import gradient
from tests.support.distributions import reference

NAMES = list(DIVERGENCES)
INF = float("inf")


def numbers(found):
    return tuple(None if x is None else float(x) for x in found)


@pytest.mark.parametrize("name", NAMES)
def test_forms_of_every_divergence(name):
    """Bregman and generic leave nothing; published leaves f'(1) grad P(S)."""
    c = oracle.SLOPE.get(name, 0.0)
    found = {form: split_of(name, form) for form in FORMS}
    assert {form: numbers(x) for form, x in found.items()} == {
        "bregman": (0.0, 0.0),
        "generic": (0.0, 0.0),
        "published": (0.0, c),
    }
    assert [x.unbiased for x in found.values()] == [True, True, c == 0]


# Reverse KL. An entry of the generic head is P l = Q f~ + (P - Q), with slope P (l + 1); of the Bregman
# head Q f~ = P l - P + Q, with slope P l. A tail's value over f~ and weight over l, as (v, a):
# k1 l and 1: its weight is no l + constant; k2 no value, weight l; k3 (0, -); k3++ (0, 0); k4 (1, 0);
# r (-log w) (1, 1). What is left is head minus tail; the generic head is (1, 1), the Bregman head (0, 0).
REVERSE_TAILS = {
    "k1": (k1, 1, None),
    "k2": (k2, None, 0),
    "k3": (k3, 0, None),
    "k3_plus_plus": (k3_plus_plus, 0, 0),
    "k4": (k4, 1, 0),
    "generic": (kf_plus_plus("reverse_kl", "generic"), 1, 1),
}
# Forward KL. Generic head -Q log t = Q f~ - (P - Q), slope -Q = P (f~' - 1): (-1, -1). k5 (-1, 0): its
# value is w log w and its weight 1 - w; sg(w) log w has (-1, -1); the Bregman tail (0, 0); k3's weight
# is 1 - w as well.
FORWARD_TAILS = {
    "k5": (k5, -1, 0),
    "generic": (kf_plus_plus("forward_kl", "generic"), -1, -1),
    "bregman": (kf_plus_plus("forward_kl"), 0, 0),
    "k3": (k3, None, 0),
    "k4": (k4, None, None),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("divergence", "tail"),
    [("reverse_kl", t) for t in REVERSE_TAILS] + [("forward_kl", t) for t in FORWARD_TAILS],
)
def test_every_head_with_every_tail(divergence, form, tail):
    sign = 1 if divergence == "reverse_kl" else -1
    fn, v, a = (REVERSE_TAILS if sign == 1 else FORWARD_TAILS)[tail]
    head = 0 if form == "bregman" else sign
    found = split(head_entry(divergence, form), fn, divergence)
    assert found == (None if v is None else head - v, None if a is None else head - a)
    assert found.unbiased == (v == head and a == head)


def test_k3_plus_plus_under_the_plain_head_is_biased_in_value_and_gradient():
    assert split(head_entry("reverse_kl", "generic"), k3_plus_plus, "reverse_kl") == (1, 1)


def test_a_detached_coefficient_in_the_head_repairs_k4():
    """sum over S of pi sg(l), with K4 outside: nothing is left of the gradient, nor of the value."""

    def head(logp, ref_logp):
        return sympy.exp(logp) * stop_gradient(logp - ref_logp)

    assert split(head, k4, "reverse_kl").unbiased


def test_a_head_that_is_no_divergence_has_no_constant():
    def half(logp, ref_logp):
        return sympy.exp(logp) * (logp - ref_logp) / 2

    assert split(half, k4, "reverse_kl") == (None, None)
    doubled = split(lambda a, b: head_entry("pearson")(a, b) * 2, kf_plus_plus("pearson"), "pearson")
    assert doubled == (None, None)


def test_constants_that_are_no_integers_are_found():
    def head(logp, ref_logp):  # Q f~ + 2/7 (P - Q)
        return head_entry("pearson")(logp, ref_logp) + (sympy.exp(logp) - sympy.exp(ref_logp)) * 2 / 7

    assert split(head, kf_plus_plus("pearson"), "pearson") == (sympy.Rational(2, 7), sympy.Rational(2, 7))
    odd = make_divergence("odd", 3 * RATIO * sympy.log(RATIO) / 5, source="test")
    assert split_of(odd, "published") == (0, sympy.Rational(3, 5))


@pytest.mark.parametrize("form", ["bregman", "generic"])
@pytest.mark.parametrize("tail", list(REVERSE_TAILS))
def test_what_a_split_says_is_what_enumeration_finds(form, tail):
    """Five tokens, head {0, 2}: what is left in expectation is the multiple that it names, or none."""
    theta, q = reference(11, 5), [x.exp() for x in reference(12, 5)]
    fn, f, head = REVERSE_TAILS[tail][0], oracle.written("reverse_kl", form)[0], [0, 2]
    found = split(head_entry("reverse_kl", form), fn, "reverse_kl")

    def left(x):
        p, log_p = oracle.probabilities(x), x.log_softmax(-1)
        exact = oracle.divergence("reverse_kl", p, q)
        total = sum(q[j] * f(p[j] / q[j]) for j in head) - exact
        return total + sum(p[j].detach() * fn(log_p[j], q[j].log()) for j in range(5) if j not in head)

    def mass(x):
        return oracle.mass(oracle.probabilities(x), head)

    extra, unit = left(theta), mass(theta) - oracle.mass(q, head)
    if found.value is not None:
        torch.testing.assert_close(extra, float(found.value) * unit, rtol=1e-12, atol=1e-14)
    rest, unit = gradient(left, theta), gradient(mass, theta)
    if found.gradient is not None:
        torch.testing.assert_close(rest, float(found.gradient) * unit, rtol=1e-12, atol=1e-14)
    else:
        assert (rest - (rest @ unit) / (unit @ unit) * unit).norm() > 0.01


def test_weights_that_differ_by_a_constant_agree_over_the_whole_vocabulary_only():
    a, b = (gradient_weight(kf_plus_plus("reverse_kl", f)) for f in ("bregman", "generic"))
    assert same_weight(a, b)
    assert abs(sympy.N((b - a).subs(W, 3)) - 1) < 1e-14
