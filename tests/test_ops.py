"""One formula, two readings: the operators on tensors, on symbols, and on anything else."""

import math

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion import ops

QUICK = settings(max_examples=50)
X = sympy.Symbol("x", real=True)
NUMBERS = [-2.0, -1e-4, 0.0, 0.3, 3.0]
CASES = [
    (ops.exp, math.exp, sympy.exp(X)),
    (ops.log, math.log, sympy.log(X)),
    (ops.expm1, math.expm1, sympy.exp(X) - 1),
    (ops.stop_gradient, float, ops.StopGradient(X)),
]


@pytest.mark.parametrize(("op", "by_hand", "symbolic"), CASES)
def test_an_operator_means_the_same_on_tensors_and_symbols(op, by_hand, symbolic):
    numbers = [abs(x) + 0.5 for x in NUMBERS] if op is ops.log else NUMBERS
    got = op(torch.tensor(numbers, dtype=torch.float64))
    wanted = torch.tensor([by_hand(x) for x in numbers], dtype=torch.float64)
    torch.testing.assert_close(got, wanted, rtol=1e-15, atol=0)
    assert op(X) == symbolic


@pytest.mark.parametrize("op", [ops.exp, ops.log, ops.expm1, ops.stop_gradient])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_type_and_shape_are_kept(op, dtype):
    out = op(torch.full((2, 3), 0.5, dtype=dtype))
    assert out.dtype == dtype
    assert out.shape == (2, 3)


def test_stop_gradient_keeps_the_value_and_drops_the_derivative():
    x = torch.tensor([0.5, -1.0], requires_grad=True)
    assert not ops.stop_gradient(x).requires_grad
    (gradient,) = torch.autograd.grad((ops.stop_gradient(x) * x).sum(), x)
    assert gradient.tolist() == [0.5, -1.0]  # of sg(x) x, not of x^2
    assert sympy.diff(ops.stop_gradient(X), X) == 0
    assert sympy.diff(ops.stop_gradient(X**3) * X, X) == ops.StopGradient(X**3)


def test_stop_gradient_is_printed_as_sg():
    assert sympy.latex(ops.StopGradient(X)) == r"\operatorname{sg}\left(x\right)"
    assert sympy.latex(ops.StopGradient(X) ** 2) == r"{\operatorname{sg}\left(x\right)}^{2}"


def test_stop_gradient_takes_one_argument():
    with pytest.raises(TypeError, match="exactly 1 argument"):
        ops.StopGradient(X, X)


def test_expm1_keeps_its_digits_near_zero_in_float32():
    x = torch.tensor([1e-4, -1e-5, 3e-7], dtype=torch.float32)
    wanted = torch.tensor([math.expm1(v) for v in x.tolist()], dtype=torch.float64)
    assert ((ops.expm1(x).double() - wanted) / wanted).abs().max() < 2e-7
    assert ((ops.exp(x).double() - 1 - wanted) / wanted).abs().max() > 1e-4  # what the plain form would do


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_score_ratio_is_one_and_its_gradient_is_the_score(dtype):
    logp = torch.tensor([-0.1, -3.0, -1e4], dtype=dtype, requires_grad=True)
    r = ops.score_ratio(logp)
    assert r.tolist() == [1.0, 1.0, 1.0]  # no overflow, however small the probability
    (gradient,) = torch.autograd.grad((r * torch.tensor([2.0, -3.0, 5.0], dtype=dtype)).sum(), logp)
    assert gradient.tolist() == [2.0, -3.0, 5.0]


def test_score_ratio_in_symbols():
    r = ops.score_ratio(X)
    assert r == sympy.exp(X - ops.StopGradient(X))
    assert sympy.diff(r, X) == r
    assert r.replace(ops.StopGradient, lambda x: x) == 1


@QUICK
@given(st.floats(-600, 600))
def test_log_undoes_exp(x):
    back = ops.log(ops.exp(torch.tensor(x, dtype=torch.float64))).item()
    assert back == pytest.approx(x, rel=1e-13, abs=1e-15)


@QUICK
@given(st.floats(-700, 700))
def test_exp_and_expm1_are_those_of_the_math_module(x):
    tensor = torch.tensor(x, dtype=torch.float64)
    assert ops.exp(tensor).item() == pytest.approx(math.exp(x), rel=1e-13)
    assert ops.expm1(tensor).item() == pytest.approx(math.expm1(x), rel=1e-13, abs=1e-300)


@QUICK
@given(st.floats(-1e4, 1e4), st.floats(-10, 10))
def test_score_ratio_times_a_number_has_that_number_as_gradient(logp, factor):
    x = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(ops.score_ratio(x) * factor, x)
    assert ops.score_ratio(x).item() == 1.0
    assert gradient.item() == factor


@QUICK
@given(st.floats(-50, 50))
def test_stop_gradient_of_tensors_shares_the_value(x):
    assert ops.stop_gradient(torch.tensor(x, dtype=torch.float64, requires_grad=True)).item() == x


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", [ops.exp, ops.expm1])
def test_where_the_value_overflows_a_zero_that_comes_back_stays_zero(op, dtype):
    """A mask after the exponential leaves no NaN behind; without one the slope is infinite."""
    x = torch.tensor([0.5, 1e4, math.inf, -math.inf, math.nan], dtype=dtype, requires_grad=True)
    value = op(x)
    torch.testing.assert_close(value, getattr(torch, op.__name__)(x), rtol=0, atol=0, equal_nan=True)
    (slope,) = torch.autograd.grad(value, x, torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0], dtype=dtype))
    assert slope[1:4].tolist() == [math.inf, 0.0, 0.0]
    assert slope[0].item() == pytest.approx(math.exp(0.5), rel=1e-2)
    assert slope[4].isnan()


@pytest.mark.parametrize("op", [ops.exp, ops.expm1])
def test_the_second_derivative_is_that_of_the_function(op):
    x = torch.tensor([-1.0, 0.3, 2.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    torch.testing.assert_close(second, x.detach().exp(), rtol=1e-14, atol=0)


def test_whether_nothing_is_symbolic_is_no_question():
    assert ops.is_symbolic(X, X**2)
    assert not ops.is_symbolic(X, torch.ones(1))


def test_a_product_has_the_limit_of_w_log_w():
    log_w = torch.tensor([-math.inf, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    out = ops.product(ops.stop_gradient(ops.exp(log_w)), log_w)
    assert out.tolist() == pytest.approx([0.0, 0.0, math.e])
    assert torch.autograd.grad(out.sum(), log_w)[0].tolist() == pytest.approx([0.0, 1.0, math.e])
    assert ops.product(torch.tensor(math.nan), torch.tensor(1.0)).isnan()
    assert ops.product(X, X) == X**2


def test_infinities_become_the_largest_number():
    largest = torch.finfo(torch.float16).max
    x = torch.tensor([math.inf, -math.inf, 2.0, math.nan], dtype=torch.float16)
    assert ops.finite(x)[:3].tolist() == [largest, -largest, 2.0]
    assert ops.finite(x)[3].isnan()
    assert ops.finite(X) == X
