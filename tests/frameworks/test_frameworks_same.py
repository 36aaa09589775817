"""Settings that are the same loss: formulas and functions of different frameworks, beside one another.

On three batches: ``far`` has log-ratios of which some are clamped, ``near`` none, and ``fresh`` is like
``near`` with the policy's own samples.
"""

import csv
from pathlib import Path

import pytest
import torch

from kl_companion import Rollout, kl_loss, prefix_tree
from kl_companion.auditing.reading.precision import exactly
from kl_companion.frameworks import setting
from tests.support.data import data

DATA = data(__file__)

with Path(__file__).with_name("same.csv").open(encoding="utf-8", newline="") as stream:
    PAIRS = [tuple(row.values()) for row in csv.DictReader(stream)]
# in value these two differ: the head is renormalized with a stopped gradient
SAME_GRADIENT = ("open_opd.loss_topk_reverse_kl_intersect_sg_norm_listed", "trl.iw_opd_reverse_top_2_no_tail")


def batch(where):
    scale, seed = (6.0, 2) if where == "far" else (1.0, 0)
    problem = prefix_tree(3, 3, seed=seed, eos=True, off_policy=where != "fresh", scale=scale)
    chosen = torch.tensor([0, 3, 5, 9, 12] if where == "far" else [0, 5, 9])
    return problem.rollout(problem.logits.clone().requires_grad_(), chosen)


def value_and_slope(loss, where):
    r = batch(where)
    value = loss(r)
    return value.item(), torch.autograd.grad(value, r.logits)[0]


@pytest.mark.parametrize(("one", "other", "where"), PAIRS)
def test_two_settings_that_are_one_loss(one, other, where):
    (a, x), (b, y) = (value_and_slope(exactly(setting(name).loss), where) for name in (one, other))
    assert a == pytest.approx(b, rel=1e-9)
    assert (x - y).abs().max() < 1e-9
    assert y.abs().max() > 1e-3


def test_two_settings_of_one_gradient():
    (_, x), (_, y) = (value_and_slope(exactly(setting(name).loss), "fresh") for name in SAME_GRADIENT)
    assert (x - y).abs().max() < 1e-9 < y.abs().max()


def test_a_mean_of_absolute_log_ratios_is_half_of_their_sum_where_answers_have_two_tokens():
    problem, found = prefix_tree(3, 2, seed=2, off_policy=True), []
    for name in ("skyrl.loss_abs", "verl.loss_abs"):
        r = problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 4, 8]))
        value = exactly(setting(name).loss)(r)
        found.append((value.item(), torch.autograd.grad(value, r.logits)[0]))
    (a, x), (b, y) = found
    assert 2 * a == pytest.approx(b, rel=1e-9)
    assert (2 * x - y).abs().max() < 1e-9


OURS = DATA["ours"]


@pytest.mark.parametrize("name", OURS)
def test_an_installed_function_is_one_of_ours(name):
    """What an unweighted estimator has on-policy is compared on-policy."""
    where = "near" if "importance" in OURS[name] else "fresh"

    def ours(rollout: Rollout) -> torch.Tensor:
        return kl_loss(rollout, **OURS[name])

    (a, x), (b, y) = value_and_slope(ours, where), value_and_slope(exactly(setting(name).loss), where)
    assert a == pytest.approx(b, rel=1e-12)
    assert (x - y).abs().max() < 1e-12
