"""What was NaN, or nothing, once: each of these inputs has its number now, or an error that names it."""

from __future__ import annotations

import math

import pytest
import torch

from kl_book.names import kl
from kl_companion.checks import check_scalar, refuse_nan
from tests.support.rollouts import last_token

NAN, INF = math.nan, math.inf


def test_what_is_a_coefficient() -> None:
    for value in (0, -1.5, 1e300, torch.tensor([0.0, -1.0])):
        check_scalar("beta", value)
    check_scalar("beta", 1e30, dtype=torch.float16)  # half precision multiplies in float32
    check_scalar("beta", 0, least=0.0)


def test_infinity_is_a_result_and_nan_is_none() -> None:
    x = torch.tensor([INF, 1.0])
    assert refuse_nan("x", x) is x
    with pytest.raises(ValueError, match=r"x is not a number: sums or products on the way overflow"):
        refuse_nan("x", x * 0, y=torch.ones(2))


def test_a_clip_bounds_a_ratio_that_would_be_infinite() -> None:
    r = last_token(ratio=100.0)
    rho = kl.importance_ratio(r, scope="token", clip=(0.0, 2.0))
    assert rho.tolist() == [[1.0, 1.0], [1.0, 2.0]]
    (slope,) = torch.autograd.grad(rho.sum(), r.logp)
    assert slope.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_a_group_of_equal_values_has_a_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    (slope,) = torch.autograd.grad(kl.center(x, torch.tensor([0, 0]), "standardized").sum(), x)
    assert slope.isfinite().all()


@pytest.mark.parametrize("log_q", [-756.0, -800.0])
def test_neyman_of_masses_that_are_zero(log_q: float) -> None:
    """Q^2/P = e^(2 log Q - log P), where Q and P are 0 in float64 and Q/P is infinite."""
    policy = torch.tensor([0.0, -1510.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, log_q], dtype=torch.float64)
    wanted = math.exp(2 * log_q + 1510)
    for value in (
        kl.fused_f_divergence("neyman", policy, reference),
        kl.f_divergence("neyman", policy, reference),
    ):
        (slope,) = torch.autograd.grad(value, policy)
        assert value.item() == pytest.approx(wanted, rel=1e-12)
        assert slope[1].item() == pytest.approx(-wanted, rel=1e-12)
        assert not slope.isnan().any()


def test_neyman_that_the_dtype_does_not_hold() -> None:
    x, y = torch.tensor([0.0, -7909.0]), torch.tensor([0.0, -1606.0])
    with pytest.raises(ValueError, match=r"neyman at \[\] is beyond torch.float32: its largest ratios"):
        kl.fused_f_divergence("neyman", x, y, validate=True)


def test_pearson_whose_factors_overflow() -> None:
    policy = torch.tensor([0.0, -1258.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, -2500.0], dtype=torch.float64)
    value = kl.f_divergence("pearson", policy, reference)
    (slope,) = torch.autograd.grad(value, policy)
    assert value.item() == pytest.approx(math.exp(-2 * 1258 + 2500), rel=1e-9)
    assert slope[1].item() == pytest.approx(2 * math.exp(-2 * 1258 + 2500), rel=1e-9)


def test_float16_powers_that_overflow_below_the_moderate_ratios() -> None:
    policy = torch.tensor([-7.0, -1e-3], dtype=torch.float16)
    reference = torch.tensor([-1e-3, -10.0], dtype=torch.float16)
    wanted = kl.f_divergence("pearson", *(x.double().log_softmax(-1) for x in (policy, reference)))
    assert kl.f_divergence("pearson", policy, reference).item() == pytest.approx(wanted.item(), rel=2e-2)
