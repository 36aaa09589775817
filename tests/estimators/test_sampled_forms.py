"""What the three forms of one divergence have in common and where they differ, for any logits."""

import pytest
import sympy
import torch

from kl_companion.divergences import DIVERGENCES, T, W, make_divergence
from kl_companion.estimators import get_estimator
from kl_companion.estimators.sampled import FORMS, kf_plus_plus
from kl_companion.theory import calculus
from tests.oracles import top_k as oracle
from tests.support.data import data
from tests.support.symbolic import equal_functions

DATA = data(__file__)


NAMES = list(DIVERGENCES)


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


@pytest.mark.parametrize(("name", "written"), DATA["forms_by_name"])
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
