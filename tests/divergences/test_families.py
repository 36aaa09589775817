"""Members of the families against formulas written out by hand, with 60 digits or in float64."""

import math
import subprocess
import time
from fractions import Fraction

import mpmath
import pytest
import sympy
import torch

from kl_companion import kf_plus_plus
from kl_companion.divergences import (
    DIVERGENCES,
    FAMILIES,
    T,
    W,
    amari_alpha,
    entries_of,
    generalized_jensen_shannon,
    get_divergence,
    inverse_slope,
    make_divergence,
    power_divergence,
    printed,
    skewed_forward_kl,
    skewed_reverse_kl,
    stable_generator,
    stable_slope,
)
from kl_companion.estimators import f_divergence, top_k_f_divergence
from kl_companion.kernels import fused_f_divergence
from tests.support.warm import command

RATIOS = ("1e-9", "0.3", "0.999", "1.7", "1e9")
SHARES = (0.1, 0.3, 0.5, 0.75, 0.9, 0.97, 0.999, 1 / 3)


def jensen_shannon_by_hand(t, b):
    m = b + (1 - b) * t
    return -b * mpmath.log(m) + (1 - b) * t * mpmath.log(t / m)


def skewed_forward_by_hand(t, skew):
    return -mpmath.log(skew + (1 - skew) * t) + (1 - skew) * (t - 1)


def skewed_reverse_by_hand(t, skew):
    return t * mpmath.log(t / (skew * t + 1 - skew)) - (1 - skew) * (t - 1)


BY_HAND = {
    generalized_jensen_shannon: jensen_shannon_by_hand,
    skewed_forward_kl: skewed_forward_by_hand,
    skewed_reverse_kl: skewed_reverse_by_hand,
}


def numeric(expr, symbol=T):
    return sympy.lambdify(symbol, expr, "mpmath")


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("family", list(BY_HAND))
def test_closed_forms_of_mixtures(family, share):
    d = family(share)
    fraction = Fraction(share).limit_denominator(1000)
    with mpmath.workdps(60):
        share = mpmath.mpf(fraction.numerator) / fraction.denominator

        def f(t):
            return BY_HAND[family](t, share)

        forms = [numeric(x) for x in (d.f, d.derivative, d.dual)]
        phi, psi = numeric(d.phi, W), numeric(d.psi, W)
        for text in RATIOS:
            t = mpmath.mpf(text)
            slope, slope_of_inverse = mpmath.diff(f, t), mpmath.diff(f, 1 / t)
            wanted = (f(t), slope, t * f(1 / t))
            for got, want in zip([form(t) for form in forms], wanted, strict=True):
                assert abs(got - want) <= mpmath.mpf("1e-20") * abs(want)
            assert abs(phi(t) - slope_of_inverse) <= mpmath.mpf("1e-20") * abs(slope_of_inverse)
            assert abs(psi(t) - (f(t) - t * slope)) <= mpmath.mpf("1e-20") * abs(psi(t))
        assert float(d.curvature) == pytest.approx(float(mpmath.diff(f, 1, 2)), rel=1e-12)
        end = mpmath.mpf("1e-40")
        assert d.edges == pytest.approx((float(f(end)), float(end * f(1 / end))), rel=1e-12)
        assert float(d.slope_range[1]) == pytest.approx(float(mpmath.diff(f, mpmath.mpf("1e25"))), rel=1e-9)
        low = d.slope_range[0]
        assert low == -sympy.oo or float(low) == pytest.approx(
            float(mpmath.diff(f, mpmath.mpf("1e-25"))), rel=1e-9
        )
        inverse = sympy.lambdify(sympy.Symbol("s", real=True), inverse_slope(d), "mpmath")
        for text in RATIOS[1:4]:
            assert abs(inverse(numeric(d.derivative)(mpmath.mpf(text))) - mpmath.mpf(text)) < 1e-30


@pytest.mark.parametrize("e", [0.97, 0.999, 0.001, -0.97, 0.1234567, 1.03, 7.25, 1 / 3])
def test_closed_forms_of_powers(e):
    d = power_divergence(e)
    fraction = Fraction(e).limit_denominator(10**9)
    assert float(fraction) == e
    with mpmath.workdps(60):
        a = mpmath.mpf(fraction.numerator) / fraction.denominator

        def f(t):
            return (t**a - 1 - a * (t - 1)) / (a * (a - 1))

        for text in RATIOS:
            t = mpmath.mpf(text)
            slope = (t ** (a - 1) - 1) / (a - 1)
            wanted = (f(t), slope, t * f(1 / t))
            for form, want in zip((d.f, d.derivative, d.dual), wanted, strict=True):
                assert abs(numeric(form)(t) - want) <= mpmath.mpf("1e-20") * abs(want)
            assert abs(numeric(d.phi, W)(1 / t) - slope) <= mpmath.mpf("1e-20") * abs(slope)
            assert abs(numeric(d.psi, W)(t) - (f(t) - t * slope)) <= mpmath.mpf("1e-20") * abs(
                f(t) - t * slope
            )
        inverse = sympy.lambdify(sympy.Symbol("s", real=True), inverse_slope(d), "mpmath")
        for text in RATIOS[1:4]:
            assert abs(inverse(numeric(d.derivative)(mpmath.mpf(text))) - mpmath.mpf(text)) < 1e-30
    assert d.curvature == 1
    assert d.edges == pytest.approx((1 / e if e > 0 else math.inf, 1 / (1 - e) if e < 1 else math.inf))


def test_limits_and_the_symmetric_member_are_the_registered_divergences():
    reverse, forward = DIVERGENCES["reverse_kl"], DIVERGENCES["forward_kl"]
    assert generalized_jensen_shannon(0.5) is DIVERGENCES["jensen_shannon"]
    assert generalized_jensen_shannon(0) is skewed_forward_kl(0) is forward  # as TRL switches at 0 and 1
    assert generalized_jensen_shannon(1.0) is skewed_reverse_kl(0.0) is reverse
    t = sympy.Rational(7, 3)
    for b, limit, by in ((1e-6, forward, 1e-6), (1 - 1e-6, reverse, 1e-6)):
        near = float(generalized_jensen_shannon(b).f.subs(T, t)) / by
        assert near == pytest.approx(float(limit.f.subs(T, t)), rel=1e-5)


def test_exchanged_arguments():
    assert generalized_jensen_shannon(0.9).dual == generalized_jensen_shannon(0.1).f
    assert sympy.expand(skewed_forward_kl(0.1).dual - skewed_reverse_kl(0.1).f) == 0


@pytest.mark.parametrize("family", [f for f in FAMILIES.values() if f is not amari_alpha])
def test_every_number_has_a_name_of_its_own(family):
    numbers = [1 / 3, 0.333333, 0.3333333333, math.nextafter(1 / 3, 0), 0.1, 0.10000000000000002, 1e-7, 2 / 7]
    numbers += [sympy.Rational(333333333333333333333, 10**21), Fraction(1, 3) + Fraction(1, 10**20)]
    members = [family(x) for x in numbers]
    assert len({d.name for d in members}) == len({d.f for d in members}) == len(numbers)
    for d in members:
        assert get_divergence(d.name).f == d.f
    assert family(1 / 3) == family(sympy.Rational(1, 3)) == family(Fraction(1, 3))
    assert family(1 / 3).name.endswith("(1/3)")
    assert family(0.1).name.endswith("(0.1)")


def test_names_of_families_in_text():
    assert get_divergence("skewed_kl(1/10)").name == "skewed_forward_kl(0.1)"
    assert get_divergence("generalized_jensen_shannon(.9)").name == "generalized_jensen_shannon(0.9)"
    assert amari_alpha(sympy.sqrt(2)).name == "amari_alpha(sqrt(2))"


def rows(scale, dtype, seed=0, vocab=40):
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(3, vocab, generator=draw, dtype=torch.float64)
    y = x + scale * torch.randn(3, vocab, generator=draw, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def with_60_digits(family, share, x, y):
    """Value and gradient with respect to the logits of one row."""
    with mpmath.workdps(60):
        share = mpmath.mpf(Fraction(share).numerator) / Fraction(share).denominator
        p, q = ([mpmath.exp(mpmath.mpf(v)) for v in row.double().tolist()] for row in (x, y))
        p, q = ([v / sum(row) for v in row] for row in (p, q))
        value = sum(b * BY_HAND[family](a / b, share) for a, b in zip(p, q, strict=True))
        slopes = [mpmath.diff(lambda t: BY_HAND[family](t, share), a / b) for a, b in zip(p, q, strict=True)]
        mean = sum(a * s for a, s in zip(p, slopes, strict=True))
        return value, [a * (s - mean) for a, s in zip(p, slopes, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize(
    ("family", "share"),
    [
        (generalized_jensen_shannon, "9/10"),
        (generalized_jensen_shannon, "1/10"),
        (generalized_jensen_shannon, "99/100"),
        (skewed_forward_kl, "1/10"),
        (skewed_reverse_kl, "1/10"),
        (skewed_reverse_kl, "1/3"),
    ],
)
def test_kernels_of_members_keep_the_digits(family, share, scale, dtype):
    x, y = rows(scale, dtype)
    x.requires_grad_()
    value = fused_f_divergence(family(sympy.Rational(share)), x, y)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    few = 400 * torch.finfo(dtype).eps
    for i in range(len(x)):
        want, slope = with_60_digits(family, share, x[i].detach(), y[i])
        assert value[i].item() == pytest.approx(float(want), rel=few)
        want = torch.tensor([float(s) for s in slope], dtype=torch.float64)
        assert (gradient[i] - want).norm() <= few * want.norm()


def test_members_nearly_at_an_end_are_computed_in_float64():
    # f = c (t - 1) - log(1 + c (t - 1)) with c = 1/1000 loses five of the seven digits of float32
    for name in ("skewed_forward_kl(0.999)", "skewed_reverse_kl(0.999)", "generalized_jensen_shannon(0.001)"):
        assert not entries_of(get_divergence(name)).narrow
    x, y = rows(1.0, torch.float32)
    for share in ("999/1000", "1/1000"):
        got = fused_f_divergence(skewed_forward_kl(sympy.Rational(share)), x, y)
        for i in range(len(x)):
            want, _ = with_60_digits(skewed_forward_kl, share, x[i], y[i])
            assert got[i].item() == pytest.approx(float(want), rel=1e-5)


@pytest.mark.parametrize("compiled", ["eager", "compiled"])
def test_a_mask_on_one_side_costs_the_edge(compiled):
    x = torch.tensor([[0.0, 1.0, -math.inf, 2.0]])
    y = torch.tensor([[0.5, -math.inf, 0.3, 1.0]])
    p, q = x.double().softmax(-1), y.double().softmax(-1)
    m = 0.9 * q + 0.1 * p
    want = 0.9 * torch.xlogy(q, q / m).sum() + 0.1 * torch.xlogy(p, p / m).sum()
    got = fused_f_divergence("generalized_jensen_shannon(0.9)", x, y, backend=compiled)
    assert got.item() == pytest.approx(want.item(), rel=1e-6)
    m = 0.1 * q + 0.9 * p  # the reference's share is 0.1
    got = f_divergence("skewed_kl(0.1)", x.log_softmax(-1), y.log_softmax(-1))
    assert torch.isfinite(got).all()
    assert got.item() == pytest.approx(torch.xlogy(q, q / m).sum().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "textbook"),
    [
        (
            "generalized_jensen_shannon(0.9)",
            lambda p, q, m: 0.9 * (q * (q / m(0.1)).log()).sum(-1) + 0.1 * (p * (p / m(0.1)).log()).sum(-1),
        ),
        ("skewed_forward_kl(0.2)", lambda p, q, m: (q * (q / m(0.8)).log()).sum(-1)),
        ("skewed_reverse_kl(0.2)", lambda p, q, m: (p * (p / m(0.2)).log()).sum(-1)),
    ],
)
def test_estimators_of_members(name, textbook):
    """The formula over the vocabulary in plain PyTorch, its gradient, and expectations by enumeration."""
    x, y = (v.log_softmax(-1) for v in rows(1.0, torch.float64, vocab=6))
    p, q = x.exp(), y.exp()

    def exact(logp):
        pi = logp.exp()
        return textbook(pi, q, lambda of_policy: of_policy * pi + (1 - of_policy) * q)

    assert f_divergence(name, x, y).tolist() == pytest.approx(exact(x).tolist(), rel=1e-12)
    logits = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(exact(logits.log_softmax(-1)).sum(), logits)
    sampled = kf_plus_plus(name)(logits.log_softmax(-1), y)  # of every token
    assert (p * sampled).sum(-1).tolist() == pytest.approx(exact(x).tolist(), rel=1e-12)
    (got,) = torch.autograd.grad((p * sampled).sum(), logits)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    head = torch.zeros_like(x)
    for token in range(x.shape[-1]):
        tokens = torch.full((len(x),), token)
        part = top_k_f_divergence(name, logits.log_softmax(-1), y, tokens, k=2)
        head[:, token] = part.detach()
    assert (p * head).sum(-1).tolist() == pytest.approx(exact(x).tolist(), rel=1e-12)


@pytest.mark.parametrize(
    "name", ["generalized_jensen_shannon(0.9)", "skewed_kl(0.1)", "skewed_reverse_kl(0.1)"]
)
def test_far_from_one_nothing_overflows(name):
    d = get_divergence(name)
    for dtype in (torch.float32, torch.float64):
        u = torch.tensor([-5000.0, -100.0, -50.0, 50.0, 80.0], dtype=dtype, requires_grad=True)
        value = stable_generator(d, u)
        (gradient,) = torch.autograd.grad(value.sum(), u)
        assert gradient.isfinite().all()
        assert value[0].item() == pytest.approx(d.edges[0], rel=1e-6)
        assert (value[4] / u[4].exp()).item() == pytest.approx(d.edges[1], rel=1e-5)
        slope = stable_slope(d, torch.tensor([60.0, 5000.0], dtype=dtype))
        assert slope.tolist() == pytest.approx([float(d.slope_range[1])] * 2, rel=1e-5)


@pytest.mark.parametrize("c", [0.5, 0.97, 0.999, 1 - 0.97, 0.1234567890123])
@pytest.mark.parametrize(
    "generator",
    [
        lambda c: T * sympy.log(T / (c * T + (1 - c))),
        lambda c: -sympy.log(c + (1 - c) * T),
        lambda c: (1 - c) * T * sympy.log(T) - (c + (1 - c) * T) * sympy.log(c + (1 - c) * T),
        lambda c: (T**c - 1 - c * (T - 1)) / (c * (c - 1)),
    ],
)
def test_own_divergences_with_floats_are_derived_at_once(generator, c):
    """What took minutes, or ended in a TypeError of SymPy; against differences with 40 digits."""
    start = time.perf_counter()
    d = make_divergence("own", generator(c), source="test")
    forms = (d.f, d.derivative, d.dual)
    entries = entries_of(d)
    assert d.curvature.is_Rational
    assert all(isinstance(text, str) for text in printed(d).values())
    assert time.perf_counter() - start < 5.0  # 15 s to minutes before
    assert entries.at_zero == d.edges[0]
    with mpmath.workdps(40):
        f, derivative, dual = map(numeric, forms)
        for text in ("0.01", "0.7", "3", "1000"):
            t = mpmath.mpf(text)
            assert abs(derivative(t) - mpmath.diff(f, t)) < 1e-12 * abs(derivative(t))
            assert abs(dual(t) - t * f(1 / t)) < 1e-12 * abs(dual(t))
    u = torch.tensor([-8.0, -0.5, 0.5, 8.0], dtype=torch.float64)
    want = [float(f(mpmath.exp(v))) for v in u.tolist()]
    assert stable_generator(d, u).tolist() == pytest.approx(want, rel=1e-7)


@pytest.mark.parametrize("e", [2 / 3, 1 / 7, 0.123456789, -0.25, 2.0])
def test_pasted_weights_have_all_digits(e):
    """Exponents had six digits: an error of 3e-6 at w = 1e4."""
    lines = printed(power_divergence(e))
    w = torch.tensor([1e-4, 0.3, 7.0, 1e4], dtype=torch.float64)
    for name, want in {
        "weight": (w ** (1 - e) - 1) / (e - 1),
        "value": (w ** (1 - e) - w - e * (1 - w)) / (e * (e - 1)),
    }.items():
        got = eval(lines[name], {"torch": torch, "w": w})
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)


IN_A_GRAPH = """
import torch
from kl_companion.kernels import fused_f_divergence

def total(x, y):
    return fused_f_divergence("generalized_jensen_shannon(3/7)", x, y).sum()

draw = torch.Generator().manual_seed(0)
x, y = torch.randn(2, 3, 40, generator=draw, dtype=torch.float64)
x.requires_grad_()
value = torch.compile(total, fullgraph=True, backend="aot_eager")(x, y)
(slope,) = torch.autograd.grad(value, x)
p, q = x.softmax(-1), y.softmax(-1)
m = (3 * q + 4 * p) / 7
by_hand = (3 * (q * (q / m).log()).sum() + 4 * (p * (p / m).log()).sum()) / 7
(wanted,) = torch.autograd.grad(by_hand, x)
print((value / by_hand - 1).abs().item(), ((slope - wanted).norm() / wanted.norm()).item())
"""


def test_members_in_the_graph_of_a_user():
    """The compiler cannot trace SymPy: a member is looked up while it traces."""
    done = subprocess.run([*command(), "-c", IN_A_GRAPH], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert max(map(float, done.stdout.split())) < 1e-12
