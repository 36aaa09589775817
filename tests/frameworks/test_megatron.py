"""Megatron-LM: a head of the teacher's tokens with the rest and without."""

import math

import pytest
import torch

from kl_companion.frameworks import megatron
from tests.support.frameworks.one_token import gradients, one_token


def test_a_head_with_no_rest_is_no_divergence():
    """Where both agree the ghost's term has no gradient; without it the head's mass is pulled up."""
    slopes = []
    for ghost in (True, False):
        r = one_token((0.5, 0.3, 0.2), (0.5, 0.3, 0.2))
        slopes.append(torch.autograd.grad(megatron.head(2, ghost, r).sum(), r.logits)[0].flatten())
    assert slopes[0].abs().max() < 1e-12
    # the slope of -(0.5 log p0 + 0.3 log p1) is 0.8 p - (0.5, 0.3, 0)
    assert slopes[1].tolist() == pytest.approx([-0.1, -0.06, 0.16])


def test_the_rest_is_kept_from_being_zero():
    """Of two tokens nothing is left, for both; 1e-8 log 1 is added."""
    r = one_token((0.4, 0.6), (0.7, 0.3))
    exact = 0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6)
    assert megatron.head(2, True, r).item() == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(
    ("formula", "function", "off_policy"),
    [
        ("megatron.grpo", "liger.grpo", True),
        ("megatron.top_1_ghost", "trl.iw_opd_forward_top_1_tail", True),
        ("megatron.top_1_no_tail", "open_opd.opsd_topk_forward_kl", True),
    ],
)
def test_a_formula_beside_the_function_that_has_the_same_gradient(formula, function, off_policy):
    found = gradients(formula, function, off_policy)
    assert (found[0] - found[1]).abs().max() < 1e-7 * found[1].abs().max()
