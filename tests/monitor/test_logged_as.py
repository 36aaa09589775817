"""Which estimators a number equals, by values that are worked out by hand."""

import math

import pytest
import torch

from kl_companion.monitor.logged_as import EXCHANGED, LEAST, logged_as

POLICY = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
REFERENCE = torch.tensor([-1.5, -1.8, -0.9], dtype=torch.float64)  # log-ratios 0.5, -0.2, 0.4
ANSWER = torch.tensor([0, 0, 1])
PAIRS = {"policy/reference": (POLICY, REFERENCE), EXCHANGED: (REFERENCE, POLICY)}


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0.7 / 3, "K1 policy/reference tokens"),
        (-0.7 / 3, "-K1 policy/reference tokens"),
        ((0.15 + 0.4) / 2, "K1 policy/reference answers"),
        (0.35, "K1 policy/reference sum"),
        ((0.125 + 0.02 + 0.08) / 3, "K2 policy/reference tokens"),
        (sum(math.exp(-r) - 1 + r for r in (0.5, -0.2, 0.4)) / 3, "K3 policy/reference tokens"),
        (sum(math.exp(r) - 1 - r for r in (0.5, -0.2, 0.4)) / 3, "K3 reference/policy tokens"),
        (-0.1 * 0.35, "-K1 policy/reference sum beta"),
    ],
)
def test_the_name_of_a_number(number, name):
    assert logged_as(number, PAIRS, ANSWER, beta=0.1) == (name,)
    assert logged_as(1.001 * number, PAIRS, ANSWER, beta=0.1) == ()


def test_what_cannot_be_told():
    assert logged_as(None, PAIRS, ANSWER) is None
    assert logged_as(math.nan, PAIRS, ANSWER) is None
    assert logged_as(LEAST / 2, PAIRS, ANSWER) is None
    unknown = {"old/reference": (POLICY.where(ANSWER == 0, math.nan), REFERENCE)}
    assert logged_as(0.7 / 3, unknown, ANSWER) == ()
