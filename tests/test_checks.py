"""Errors at the door: what each check lets pass, and what it says when it does not."""

from fractions import Fraction

import numpy
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from kl_companion import checks

QUICK = settings(max_examples=50)
NAN, INF = float("nan"), float("inf")


def test_an_unknown_name_lists_the_known_and_offers_the_nearest():
    error = checks.unknown_name("estimator", "k3_plus_plsu", ["k3_plus_plus", "k1"])
    assert isinstance(error, ValueError)
    assert str(error) == (
        "unknown estimator 'k3_plus_plsu'. Did you mean 'k3_plus_plus'? Known: k1, k3_plus_plus"
    )


def test_a_name_like_no_other_gets_no_hint():
    assert str(checks.unknown_name("table", "zzz", ["k1"])) == "unknown table 'zzz'. Known: k1"


def test_choice():
    checks.check_choice("how", "sum", ("sum", "mean"))


def test_shape():
    checks.check_shape("x", torch.zeros(2, 3), (2, 3), "y [batch, seq]")


def test_floating(as_installed):
    checks.check_floating("x", torch.zeros(2))


def test_nan_is_refused_with_its_place():
    x = torch.tensor([[0.0, 1.0], [NAN, NAN]])
    checks.check_no_nan("x", x, torch.tensor([[True, True], [False, False]]))


def test_log_probabilities_of_sampled_tokens():
    checks.check_log_probabilities("logp", torch.tensor([[-1e4, 0.0, -0.5]]))


def test_log_probabilities_outside_the_mask_are_not_read():
    inside = torch.tensor([[True, False, False, False]])
    checks.check_log_probabilities("logp", torch.tensor([[-1.0, NAN, 3.0, -INF]]), inside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rounding_above_zero_is_forgiven_and_no_more(dtype):
    eps = torch.finfo(dtype).eps
    checks.check_log_probabilities("logp", torch.tensor([32 * eps], dtype=dtype))
    with pytest.raises(ValueError, match="expected at most 0"):
        checks.check_log_probabilities("logp", torch.tensor([128 * eps], dtype=dtype))


def test_distributions():
    half = torch.tensor([0.5, 0.5]).log()
    checks.check_distribution("p", half)
    checks.check_distribution("p", half.expand(2, 3, 2))
    checks.check_distribution("p", torch.zeros(0, 3))  # no row, nothing wrong
    checks.check_distribution("p", torch.tensor([[0.0, -INF], [-INF, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_large_vocabulary_rounds_and_passes(dtype, offset):
    scores = torch.randn(2, 152_064, generator=torch.Generator().manual_seed(0), dtype=dtype)
    for scale in (1, 3, 4, 5, 6):
        checks.check_distribution("p", (scores * scale + offset).log_softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_more_and_is_still_checked(dtype):
    scores = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)).to(dtype)
    checks.check_distribution("p", scores.log_softmax(-1))
    with pytest.raises(ValueError, match="expected 1"):
        checks.check_distribution("p", scores.log_softmax(-1) + 0.25)


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32])
def test_masks(dtype):
    checks.check_mask(torch.tensor([[0, 1], [1, 1]]).to(dtype))


@QUICK
@given(
    st.lists(st.lists(st.floats(-30, 30), min_size=3, max_size=3), min_size=1, max_size=4), st.floats(0.01, 3)
)
def test_log_softmax_passes_and_a_shifted_row_does_not(rows, shift):
    logp = torch.tensor(rows, dtype=torch.float64).log_softmax(-1)
    checks.check_distribution("p", logp)
    for moved in (logp + shift, logp - shift):
        with pytest.raises(ValueError, match="expected 1"):
            checks.check_distribution("p", moved)


@pytest.mark.parametrize(
    "x", [0, -1.5, 10**400, Fraction(1, 3), numpy.float32(0.5), sympy.pi, sympy.Rational(1, 3)]
)
def test_numbers_of_every_library_pass(x):
    checks.check_number("lam", x)


def test_infinity_may_be_allowed_and_nan_never():
    checks.check_number("bound", -INF, infinite=True)


def test_parameters_of_families():
    numbers = {"0.3": 0.3, "1/2": 0.5, "-2": -2.0, "1e-3": 0.001, "1e-999": 0.0}
    assert {text: checks.number("k_lambda", text) for text in numbers} == numbers


def test_a_whole_number_is_returned():
    assert checks.check_whole("steps", 3, 1) == 3


def test_whether_values_may_be_read():
    x = torch.ones(2, 3)
    assert checks.may_look(x, torch.nn.Parameter(x))
    answers = [checks.may_look(x.to("meta"))]
    torch.func.vmap(lambda row: (answers.append(checks.may_look(row)), row)[1])(x)
    with FakeTensorMode() as mode:
        answers.append(checks.may_look(mode.from_tensor(x)))
    assert answers == [False] * 3
    in_graph = torch.compile(lambda x: x + checks.may_look(x), backend="eager", fullgraph=True)
    assert in_graph(x).tolist() == x.tolist()
