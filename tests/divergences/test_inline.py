"""Functions as a compiled loop has them, run eagerly against torch's own in float64."""

import pytest
import torch

from kl_companion.divergences import inline

INF, EPS = float("inf"), 2.0**-23


@pytest.fixture(autouse=True)
def inlined(monkeypatch):
    monkeypatch.setattr(inline, "_inline", lambda x: True)


def errors(found, want):
    """Relative errors of float32 numbers."""
    return ((found.double() - want) / want).abs().nan_to_num(0.0)


def test_exp_and_expm1_are_accurate_to_the_last_digits():
    x = torch.cat([torch.linspace(-87.0, 88.3, 400_001), torch.logspace(-30, -1, 1001)])
    x = torch.cat([x, -x[-1001:]])
    assert errors(inline.exp(x), x.double().exp()).max() <= EPS
    assert errors(inline.expm1(x), x.double().expm1()).max() <= 1.5 * EPS


def test_exp_and_expm1_at_their_ends():
    x = torch.tensor([-INF, -1e30, -104.0, 0.0])
    assert inline.exp(x).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert inline.expm1(x).tolist() == [-1.0, -1.0, -1.0, 0.0]
    assert inline.exp(torch.tensor([float("nan")])).tolist() == [0.0]


def test_one_polynomial_serves_exp_and_its_excess():
    u = torch.linspace(-0.75, 0.75, 10_001)
    x = torch.linspace(-200.0, 88.3, 10_001)
    near = torch.arange(10_001) % 2 == 0
    far, excess = inline.exp_and_excess(x, torch.where(near, u, torch.nan), near)
    exact = u.double()
    want = torch.where(
        exact.abs() < 1e-3, 0.5 + exact / 6 + exact**2 / 24, (exact.expm1() - exact) / exact**2
    )
    assert errors(excess, want)[near].max() <= 1.5 * EPS
    want = torch.where(x < -87.3, 0.0, x.double().exp())
    assert errors(far, want)[~near].max() <= EPS
    ends = torch.tensor([-INF, 89.0, 1e30, INF])
    nowhere = torch.zeros(4, dtype=torch.bool)
    assert inline.exp_and_excess(ends, ends, nowhere)[0].tolist() == [0.0, INF, INF, INF]


def test_log1p_is_accurate_to_the_last_digits():
    small = torch.logspace(-30, -0.001, 20_001)
    x = torch.cat([-small, small, torch.logspace(0, 38, 20_001), torch.linspace(-0.999, 3, 20_001)])
    assert errors(inline.log1p(x), x.double().log1p()).max() <= 1.5 * EPS
    assert inline.log1p(torch.zeros(1)).tolist() == [0.0]


def test_a_polynomial():
    assert inline.series_at((1.0, 2.0, 4.0), torch.tensor([0.0, 2.0])).tolist() == [1.0, 21.0]


@pytest.mark.parametrize("length", [1, 2, 7, 64])
@pytest.mark.parametrize("lanes", [1, 2])
def test_the_largest(length, lanes):
    draw = torch.Generator().manual_seed(length)
    x = [torch.randn(5, length, generator=draw) for _ in range(lanes)]
    assert torch.equal(inline.largest(x), torch.cat(x, -1).amax(-1))
    x[-1][2, length // 2] = float("nan")
    assert inline.largest(x).isnan().tolist() == [False, False, True, False, False]
    for lane in x:
        lane[2] = -INF
    assert inline.largest(x)[2] == -INF
