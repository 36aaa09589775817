"""exp and the largest of a row as a compiled loop has them, run eagerly against torch's own in float64."""

import pytest
import torch

from kl_companion.divergences import inline


@pytest.fixture(autouse=True)
def inlined(monkeypatch):
    monkeypatch.setattr(inline, "_inline", lambda x: True)


def test_exp_is_accurate_to_the_last_digits():
    x = torch.linspace(-87.0, 88.3, 400_001)
    found, want = inline.exp(x, bounded=False).double(), x.double().exp()
    assert ((found - want).abs() / want).max() <= 2.0**-23


def test_exp_at_its_ends():
    inf = float("inf")
    x = torch.tensor([-inf, -1e30, -104.0, 0.0, 89.0, 1e30, inf])
    assert inline.exp(x, bounded=False).tolist() == [0.0, 0.0, 0.0, 1.0, inf, inf, inf]
    assert inline.exp(x[:4]).tolist() == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_the_largest(length):
    x = torch.randn(5, length, generator=torch.Generator().manual_seed(length))
    assert torch.equal(inline.largest([x]), x.amax(-1))
    x[2, length // 2] = float("nan")
    assert inline.largest([x]).isnan().tolist() == [False, False, True, False, False]
    x[2] = -float("inf")
    assert inline.largest([x])[2] == -float("inf")
