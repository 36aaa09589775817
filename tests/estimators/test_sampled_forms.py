"""What the three forms of one divergence have in common and where they differ, for any logits."""

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Rational, exp, log, sqrt

from kl_companion.divergences import DIVERGENCES, T, W, make_divergence, stable_slope
from kl_companion.estimators import get_estimator
from kl_companion.estimators.sampled import FORMS, k3_plus_plus, k4, k5, kf_plus_plus
from kl_companion.estimators.top_k import truncated_f_divergence
from kl_companion.theory import calculus
from tests.oracles import top_k as oracle
from tests.support.heads import every_sample
from tests.support.symbolic import equal_functions

NAMES = list(DIVERGENCES)
QUICK = settings(max_examples=40)
rows = st.lists(st.floats(-6, 6), min_size=5, max_size=5)


@QUICK
@given(st.sampled_from(NAMES), rows, rows, st.integers(0, 5), st.sampled_from(["policy", "reference"]))
def test_the_bregman_form_is_never_negative(name, a, b, k, head_from):
    theta, ref = (torch.tensor(x, dtype=torch.float64) for x in (a, b))
    out = every_sample(name, "bregman", theta, ref, k=k, head_from=head_from)
    assert out.min() >= -1e-15
    whole = truncated_f_divergence(name, theta.log_softmax(-1), ref.log_softmax(-1), k=k, head_from=head_from)
    assert whole >= -1e-15


@QUICK
@given(st.sampled_from(["reverse_kl", "forward_kl"]), rows, rows, st.sets(st.integers(0, 4)))
def test_the_forms_differ_as_derived(name, a, b, head):
    """generic - bregman = c [P(S) - Q(S) + m r (1 - w)]; published - generic = -c m log r, which is 0."""
    theta, ref = (torch.tensor(x, dtype=torch.float64) for x in (a, b))
    indices = torch.tensor(sorted(head), dtype=torch.int64)
    bregman, generic, published = (every_sample(name, f, theta, ref, indices=indices) for f in FORMS)
    p, q = theta.softmax(-1), ref.softmax(-1)
    c = 1.0 if name == "reverse_kl" else -1.0
    outside = torch.tensor([float(j not in head) for j in range(5)], dtype=torch.float64)
    wanted = c * (((p - q) * (1 - outside)).sum() + outside * (1 - q / p))
    scale = 1 + (q / p).max().item() + (p / q).log().abs().max().item()
    torch.testing.assert_close(generic - bregman, wanted, rtol=1e-10, atol=1e-13 * scale)
    assert torch.equal(published, generic)


def test_the_three_tails_of_the_two_kls():
    """K3++ and its forward twin; r (-log w) and sg(w) log w; K4 and K5: value and slope of one sample."""
    logp = torch.tensor([-0.1, -1.0, -3.0, -2.0], dtype=torch.float64)
    ref = torch.tensor([-2.0, -1.0, -0.2, -2.5], dtype=torch.float64)

    def value_and_slope(fn):
        x = logp.clone().requires_grad_()
        out = fn(x, ref)
        return out.detach(), torch.autograd.grad(out.sum(), x)[0]

    def r(x):
        return (x - x.detach()).exp()

    def w(x):
        return (ref - x.detach()).exp()

    cases = {
        ("reverse_kl", "bregman"): k3_plus_plus,
        ("reverse_kl", "generic"): lambda x, y: r(x) * (x - y),
        ("reverse_kl", "published"): k4,
        ("forward_kl", "bregman"): lambda x, y: w(x) * (y - x + (x - y).exp() - 1),
        ("forward_kl", "generic"): lambda x, y: w(x) * (y - x),
        ("forward_kl", "published"): k5,
    }
    for (name, form), wanted in cases.items():
        got, theirs = value_and_slope(kf_plus_plus(name, form)), value_and_slope(wanted)
        torch.testing.assert_close(got[0], theirs[0], rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(got[1], theirs[1], rtol=1e-12, atol=1e-15)


LOGP = torch.tensor([-0.1, -1.0, -3.0, -0.7, -5.0], dtype=torch.float64)
REF = torch.tensor([-2.0, -1.5, -0.2, -0.7, -5.1], dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_every_form(name, form):
    """Value and slope of a sample: P/sg(P) Q/P f(P/Q) - c log(P/sg(P)), with the generator of the form."""
    f, dropped = oracle.written(name, form)
    x, y = LOGP.clone().requires_grad_(), LOGP.clone().requires_grad_()
    p, q = y.exp(), REF.exp()
    ratio = p / p.detach()
    wanted = ratio * q / p * f(p / q) - dropped * ratio.log()
    got = kf_plus_plus(name, form)(x, REF)
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-14)
    mine, theirs = (torch.autograd.grad(a.sum(), b)[0] for a, b in ((got, x), (wanted, y)))
    torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_form_in_symbols(name, form):
    """bregman is w f(1/w) with weight f'(1/w); generic adds c (1 - w) and c, published one of the two."""
    c = sympy.nsimplify(oracle.SLOPE.get(name, 0))
    bregman, other = kf_plus_plus(name, "bregman"), kf_plus_plus(name, form)
    value = calculus.value(other) - calculus.value(bregman)
    weight = calculus.gradient_weight(other) - calculus.gradient_weight(bregman)
    f, _ = oracle.written(name, "bregman")
    for point in (sympy.Rational(1, 3), sympy.Rational(9, 7), sympy.Integer(5)):
        t = torch.tensor(float(1 / point), dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(f(t), t)
        for expression, wanted in (
            (calculus.value(bregman), f(t) / t),
            (calculus.gradient_weight(bregman), slope),
        ):
            assert abs(float(expression.subs(W, point)) - wanted.item()) < 1e-12
        in_value = 0 if form == "bregman" else c * (1 - point)
        in_weight = c if form == "generic" else 0
        assert abs(sympy.N(value.subs(W, point) - in_value, 30)) < 1e-25
        assert abs(sympy.N(weight.subs(W, point) - in_weight, 30)) < 1e-25


# what is typed in, where it is not normalized; the others are their own normalized generators
TYPED = {
    "reverse_kl": (T * sympy.log(T), 1),
    "forward_kl": (-sympy.log(T), -1),
    "amari_alpha(0.5)": (sympy.Rational(16, 3) * (1 - T ** sympy.Rational(3, 4)), -4),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_as_it_was_registered(name):
    d = DIVERGENCES[name]
    f, slope = TYPED.get(name, (d.f + d.slope * (T - 1), d.slope))
    given = d.as_given
    assert d.slope == slope
    assert equal_functions(given.f, f)
    assert equal_functions(given.derivative, d.derivative + slope)
    assert (given is d) == (slope == 0)
    assert given.as_given is given
    assert (given.name, given.source, given.smooth) == (d.name, d.source, d.smooth)
    assert equal_functions(given.dual, d.dual + slope * (1 - T))


def test_a_generator_with_a_kink_keeps_its_slope_and_needs_its_derivative():
    f, slope = sympy.Abs(T - 1) / 2 + 3 * (T - 1), sympy.sign(T - 1) / 2 + 3
    d = make_divergence("kink", f, source="test", derivative=slope)
    assert (d.slope, d.smooth, d.as_given.smooth) == (3, False, False)
    assert equal_functions(d.f, sympy.Abs(T - 1) / 2)
    assert equal_functions(d.as_given.f, f)
    assert equal_functions(d.as_given.derivative, slope)
    with pytest.raises(
        ValueError, match=r"f of 'kink' has a kink at Abs\(t - 1\), expected its slope as deriv"
    ):
        make_divergence("kink", f, source="test")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("kf_plus_plus(pearson)", None),
        ("kf_plus_plus(reverse_kl, generic)", None),
        ("kf_plus_plus(amari_alpha(0.5),published)", "kf_plus_plus(amari_alpha(0.5), published)"),
        ("kf_plus_plus(forward_kl, bregman)", "kf_plus_plus(forward_kl)"),
    ],
)
def test_forms_by_name(name, written):
    entry = get_estimator(name)
    assert entry.name == (written or name)
    assert entry.inputs == "sampled"
    divergence, form = [*entry.name[13:-1].split(", "), "bregman"][:2]
    assert entry.target == divergence
    wanted = kf_plus_plus(divergence, form)
    x, y = LOGP.clone().requires_grad_(), LOGP.clone().requires_grad_()
    got, same = entry.fn(x, REF), wanted(y, REF)
    assert torch.equal(got, same)
    assert torch.equal(*(torch.autograd.grad(a.sum(), b)[0] for a, b in ((got, x), (same, y))))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("kf_plus_plus(pearson, publish)", "unknown form 'publish'. Did you mean 'published'"),
        ("kf_plus_plus(pearsn, generic)", "unknown divergence 'pearsn'. Did you mean 'pearson'"),
        ("kf_plus_plus(, generic)", "unknown divergence ''"),
    ],
)
def test_forms_that_cannot_be_read(name, wanted, as_installed):
    with pytest.raises(ValueError, match=wanted):
        get_estimator(name)


SLOPES = {  # f'(t), by hand
    "reverse_kl": lambda t: log(t),
    "forward_kl": lambda t: 1 - 1 / t,
    "jensen_shannon": lambda t: log(2 * t / (1 + t)) / 2,
    "squared_hellinger": lambda t: (1 - 1 / sqrt(t)) / 2,
    "pearson": lambda t: 2 * t - 2,
    "neyman": lambda t: 1 - 1 / t**2,
    "total_variation": lambda t: sympy.sign(t - 1) / 2,
    "amari_alpha(0.5)": lambda t: 4 - 4 / t ** Rational(1, 4),
    "power_divergence(1.5)": lambda t: 2 * sqrt(t) - 2,
}


def test_slopes():
    """f'(e^u) to a few units in the last place, near u = 0 and far from it, in both precisions."""
    assert set(SLOPES) <= set(NAMES)
    for dtype in (torch.float32, torch.float64):
        eps = torch.finfo(dtype).eps
        u = torch.tensor([-40.0, -3.0, -0.7, -1e-3, -1e-6, 0.0, 1e-5, 0.01, 0.9, 2.0, 30.0], dtype=dtype)
        for name, slope in SLOPES.items():
            exact = [sympy.N(slope(exp(Rational(float(x)))), 40) for x in u]
            got = stable_slope(DIVERGENCES[name], u)
            for x, mine, truth in zip(u.tolist(), got.tolist(), exact, strict=True):
                assert abs(mine - truth) <= 32 * eps * (1 + abs(x)) * abs(truth), (name, x)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", list(SLOPES))
def test_the_gradient_of_a_rare_sample_is_not_lost_to_rounding(name, form):
    """A sampler may draw what the policy has all but dropped: w = e^50 and e^100, in float32."""
    log_w = torch.tensor([-80.0, -30.0, 20.0, 50.0, 100.0])
    logp = (-100.0 - log_w.clamp(min=0.0)).requires_grad_()
    value = kf_plus_plus(name, form)(logp, logp.detach() + log_w)
    (gradient,) = torch.autograd.grad(value.sum(), logp)
    assert not value.isnan().any()
    # what the float32 numbers stand for, exactly
    u = (logp.double() - (logp.detach() + log_w).double()).detach()
    shift = float(DIVERGENCES[name].slope) if form == "generic" else 0.0
    for x, mine in zip(u.tolist(), gradient.tolist(), strict=True):
        truth = float(sympy.N(SLOPES[name](exp(Rational(x))), 30)) + shift
        largest = torch.finfo(torch.float32).max
        truth = max(-largest, min(largest, truth))
        assert mine == pytest.approx(truth, rel=2e-5, abs=1e-6)
