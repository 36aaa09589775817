"""Functions of tensors that are made of f: its values and gradients, near t = 1 and far from it."""

import copy
import dataclasses
import math
import pickle
import subprocess

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Rational, log

from kl_companion import divergences as dv
from kl_companion.divergences import DIVERGENCES, T, W
from kl_companion.divergences.generator import LIVING
from tests.oracles.numeric import exp_minus_line
from tests.support.data import data
from tests.support.warm import command

DATA = data(__file__)


QUICK = settings(max_examples=60)
NAMES = list(DIVERGENCES)


def test_torch_function_folds_constants_and_keeps_gradients():
    x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    out = dv.torch_function(T * log(2) + log(T) / sympy.pi, T)(x)
    wanted = [v * math.log(2) + math.log(v) / math.pi for v in (0.5, 2.0)]
    torch.testing.assert_close(out, torch.tensor(wanted, dtype=torch.float64), rtol=1e-15, atol=0)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient.tolist() == pytest.approx([math.log(2) + 1 / (v * math.pi) for v in (0.5, 2.0)])


def test_torch_function_of_a_constant_and_of_two_symbols():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert dv.torch_function(sympy.log(1), T)(x).tolist() == [0.0, 0.0, 0.0]
    assert dv.torch_function(Rational(1, 4), T)(x).tolist() == [0.25, 0.25, 0.25]
    assert dv.torch_function(T - 2 * W, T, W)(x, x + 1).tolist() == [-3.0, -4.0, -5.0]
    for k in (3, 7):  # to the last digit
        assert dv.torch_function(T * sympy.log(k), T)(x.double())[0].item() == math.log(k)


def test_torch_function_of_pieces_and_signs():
    x = torch.tensor([0.5, 2.0, 3.0])
    pieces = sympy.Piecewise((T**2, T <= 1), (T + 1, sympy.Lt(T, 2.5)), (7, True))
    assert dv.torch_function(pieces, T)(x).tolist() == [0.25, 3.0, 7.0]
    assert dv.torch_function(sympy.sign(T - 2) + sympy.Abs(T - 2), T)(x).tolist() == [0.5, 0.0, 2.0]


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_generator_of_the_log_ratio_and_its_gradient_are_accurate_near_one(name, dual):
    d = DIVERGENCES[name]
    f = d.dual if dual else d.f
    slope = sympy.diff(f, T) if d.smooth else sympy.sign(T - 1) / 2
    for dtype in (torch.float32, torch.float64):
        u = torch.tensor([0.0, -1e-4, 1e-3, 0.06, -0.002, 0.5, -3.0, 3.0], dtype=dtype)
        u.requires_grad_()
        value = dv.generator_of_log(d, dual=dual)(u)
        (gradient,) = torch.autograd.grad(value.sum(), u)
        assert value.dtype == dtype
        assert value[0].item() == 0
        assert gradient.isfinite().all()
        wanted = [float((slope * T).subs(T, sympy.exp(sympy.Float(x, 40)))) for x in u.tolist()]
        start = 0 if d.smooth else 1  # at the kink any slope between the two will do
        exact = [float(f.subs(T, sympy.exp(sympy.Float(x, 40)))) for x in u.tolist()]
        few = 16 * torch.finfo(dtype).eps  # known to a few units in the last place of u
        order = 2 if d.smooth else 1
        for x, got, want in zip(u.tolist(), value.tolist(), exact, strict=True):
            assert got == pytest.approx(want, rel=few * (1 + 1 / abs(x)) if x else 0, abs=few**order)
        for x, got, want in list(zip(u.tolist(), gradient.tolist(), wanted, strict=True))[start:]:
            assert got == pytest.approx(want, rel=few * (1 + 1 / abs(x)) if x else 0, abs=few**2)


def test_a_generator_with_another_logarithm_is_accurate_too():
    # log 3 - log(2 + t) + (t - 1)/3, about (t - 1)^2 / 18: the logarithm is not one of t / constant
    odd = dv.make_divergence("odd", log(3) - log(2 + T), source="test")
    u = torch.tensor([-2.0, -1e-4, 1e-5, 1e-3, 1.0], dtype=torch.float64)
    wanted = [float(odd.f.subs(T, sympy.exp(sympy.Float(x, 60)))) for x in u.tolist()]
    assert wanted[2] == pytest.approx(1e-10 / 18, rel=1e-4)
    assert dv.generator_of_log(odd)(u).tolist() == pytest.approx(wanted, rel=1e-9, abs=0)


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_stable_form_is_the_generator_and_overflows_to_infinity(name, dual):
    d = DIVERGENCES[name]
    u = torch.tensor([-3.0, -0.1, 0.0, 0.2, 4.0], dtype=torch.float64)
    plain = dv.generator_of_log(d, dual=dual)(u)
    torch.testing.assert_close(dv.stable_generator(d, u, dual=dual), plain, rtol=1e-12, atol=1e-15)
    far = dv.stable_generator(d, torch.tensor([-5000.0, 5000.0], dtype=torch.float64), dual=dual)
    at_zero = d.at_infinity if dual else d.at_zero
    lowest = -5000.0 if at_zero.is_finite else -300.0  # an infinite cost may overflow, no other number may
    ends = torch.tensor([lowest, -3.0, 0.2, 30.0, 300.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(dv.stable_generator(d, ends, dual=dual).sum(), ends)
    assert gradient.isfinite().all()  # what overflows in the form not taken does no harm
    assert not far.isnan().any()
    assert far[1].item() == math.inf  # w f(1/w) and f alike grow with t
    if at_zero.is_finite:
        assert far[0].item() == pytest.approx(float(at_zero), rel=1e-12)


@QUICK
@given(st.sampled_from(NAMES), st.floats(-5, 5), st.booleans())
def test_generator_of_the_log_ratio_is_the_generator(name, u, dual):
    d = DIVERGENCES[name]
    got = dv.generator_of_log(d, dual=dual)(torch.tensor(u, dtype=torch.float64)).item()
    if not dual and name in ("reverse_kl", "forward_kl"):  # from the series and not from our own f
        near = exp_minus_line(u) if abs(u) < 1 else math.expm1(u) - u
        wanted = near if name == "forward_kl" else math.exp(u) * (exp_minus_line(-u) if abs(u) < 1 else 0)
        if name == "reverse_kl" and abs(u) >= 1:
            wanted = u * math.exp(u) - math.expm1(u)
    else:
        f = d.dual if dual else d.f
        wanted = float(f.subs(T, sympy.exp(sympy.Float(u, 60))))
    assert got == pytest.approx(wanted, rel=2e-9, abs=1e-15)


SMALL_RATIOS = """
import sys, torch
torch.set_default_dtype(getattr(torch, sys.argv[1]))
from kl_companion import audit
from kl_companion.divergences import DIVERGENCES, entries_of
from kl_companion.kernels import fused_f_divergence
if sys.argv[2] == "audited":
    def loss(logits, ref_logits, mask):
        return (fused_f_divergence("forward_kl", logits, ref_logits) * mask).sum(-1).mean()
    audit(loss, off_policy=False, scale=1.0)
for name in DIVERGENCES:
    entries_of(DIVERGENCES[name])
torch.set_default_dtype(getattr(torch, sys.argv[3]))
draw = torch.Generator().manual_seed(0)
x = torch.randn(4, 64, generator=draw, dtype=torch.float64)
y = x + 1e-4 * torch.randn(4, 64, generator=draw, dtype=torch.float64)
for name in (*DIVERGENCES, "generalized_jensen_shannon(0.9)", "skewed_kl(0.1)"):
    policy = x.float().requires_grad_()
    value = fused_f_divergence(name, policy, y.float())
    (gradient,) = torch.autograd.grad(value.sum(), policy)
    exact = fused_f_divergence(name, policy.detach().double(), y.float().double())
    off = ((value - exact) / exact).abs().max().item()
    print(name, entries_of(__import__("kl_companion").get_divergence(name)).narrow, off, gradient.dtype)
"""


@pytest.mark.parametrize(
    ("before", "audited", "after"), DATA["float32_is_accurate_whatever_the_default_dtype_was"]
)
def test_float32_is_accurate_whatever_the_default_dtype_was(before, audited, after):
    """Whether float32 is enough was asked in the default dtype, once for the process: off by 1e-4 then."""
    arguments = [*command(), "-c", SMALL_RATIOS, before, audited, after]
    out = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=True).stdout
    lines = [line.rsplit(" ", 3) for line in out.splitlines()]
    assert len(lines) == len(DIVERGENCES) + 2
    for name, narrow, off, dtype in lines:
        assert (narrow, dtype) == ("True", "torch.float32"), name
        assert float(off) < 2e-6, name


def test_a_divergence_and_its_copies_are_found_by_their_ids():
    made = dv.get_divergence("jensen_shannon")
    for d in (made, copy.deepcopy(made), dataclasses.replace(made), pickle.loads(pickle.dumps(made))):
        assert LIVING[id(d)] is d
