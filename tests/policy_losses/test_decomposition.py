"""Gradients as combinations of fields, by hand."""

import math

import pytest
import torch

from kl_companion.policy_losses import decompose


def test_decompose_by_hand():
    x, y = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    found = decompose(3 * x - y / 2 + torch.tensor([[0.0, 4.0], [0.0, 0.0]]), a=x, b=y)
    assert found.coefficients == pytest.approx({"a": 3.0, "b": -0.5}, rel=1e-14)
    assert found.residual == pytest.approx(4 / math.sqrt(9 + 1 + 16), rel=1e-14)
    assert decompose(0 * x, a=x) == ({"a": 0.0}, 0.0)
    assert decompose(1e-200 * y.double(), a=y).coefficients["a"] == pytest.approx(1e-200)
