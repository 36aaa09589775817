"""Objectives of the likeliest tokens against sums written token by token, and when they are tried."""

import re

import pytest
import torch

from kl_companion import audit, prefix_tree
from kl_companion.auditing.worlds.objectives import OBJECTIVES, field, objectives, value
from kl_companion.auditing.worlds.trees import Condition
from kl_companion.auditing.worlds.trees import worlds as worlds_of
from kl_companion.auditing.worlds.truncations import cut_objectives
from tests.oracles import worlds
from tests.support.objectives import world_of

SIZES = (0, 1, 2, 3)
NAMES = sorted({n for k in SIZES for n in cut_objectives(k) if not n.endswith("mass")})
PARTS = re.compile(
    r"(token|sampled_mean)_(?:(bucketed|conditional|cropped|truncated|clamped)_)?"
    r"(reverse_kl|forward_kl|jensen_shannon)(?:_(policy|reference)_top_(\d))?"
)


def place(off_policy):
    return prefix_tree(5, 2, seed=4, eos=True, off_policy=off_policy, scale=2.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("off_policy", [False, True])
def test_value_and_gradient_are_those_of_the_sum_by_hand(name, off_policy):
    level, how, direction, whose, k = PARTS.fullmatch(name).groups()
    problem = place(off_policy)
    theta = problem.logits.clone().requires_grad_()
    sampler = problem.behavior_logits if off_policy else theta
    truth = worlds.cut(
        world_of(problem),
        theta,
        problem.ref_logits,
        sampler,
        direction,
        how or "whole",
        whose or "policy",
        int(k or 0),
        level == "sampled_mean",
    )
    (gradient,) = torch.autograd.grad(truth, theta)
    assert value(OBJECTIVES[name], problem) == pytest.approx(truth.item(), rel=1e-11)
    torch.testing.assert_close(field(OBJECTIVES[name], problem), gradient, rtol=1e-10, atol=1e-13)
    assert how == "clamped" or gradient.norm() > 1e-3


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_worlds_of_an_audit_tell_the_objectives_of_a_head_apart(k, off_policy, scale):
    condition = Condition(off_policy, True, scale)
    known = objectives(off_policy=False) | cut_objectives(k)
    fields = {
        n: torch.cat([field(known[n], w.problem).flatten() for w in worlds_of(condition, k + 2, headed=True)])
        for n in known
        if n.startswith(("token_", "sampled_mean_"))
    }
    names = list(fields)
    unit = torch.stack([f / f.norm() for f in fields.values()])
    alike = (unit @ unit.T).fill_diagonal_(0).abs() > 1 - 1e-6
    found = [(names[i], names[j]) for i, j in alike.nonzero().tolist() if i < j]
    # far from the reference some plain sums are nowhere negative: then they are said to be plain sums
    assert scale > 1 or not found
    assert all(a.replace("truncated", "clamped") == b for a, b in found), found
    assert "token_truncated_forward_kl_reference_top_2" not in [a for a, _ in found]


def test_those_that_are_cut_are_tried_only_for_what_nothing_else_explains():
    cut_objectives(2)
    assert not any(o.cut for o in objectives(off_policy=True).values())
    assert all(o.cut and o.heads_only for k in SIZES for o in cut_objectives(k).values())
    assert {n for n in cut_objectives(2) if n not in cut_objectives(2, lengths=False)} == {
        n for n in cut_objectives(2) if n.startswith("sampled_mean")
    }

    def whole(logits, ref_logits, mask):
        p, q = logits.log_softmax(-1), ref_logits.log_softmax(-1)
        return ((p.exp() * (p - q)).sum(-1) * mask).sum(-1).mean()

    def of_each_answer(logits, ref_logits, mask):
        p, q = logits.log_softmax(-1), ref_logits.log_softmax(-1)
        return ((p.exp() * (p - q)).sum(-1) * mask).sum(-1).div(mask.sum(-1)).mean()

    one = {"off_policy": False, "scale": 1.0}
    assert audit(whole, **one).findings[-1].matches == ({"token_reverse_kl": 1.0},)
    assert audit(of_each_answer, **one).findings[-1].matches == ({"sampled_mean_reverse_kl": 1.0},)


def test_what_pulls_at_the_reference_says_so():
    """At the reference itself the gradient of a divergence vanishes, and that of a plain sum does not."""
    same = prefix_tree(4, 2, seed=1, eos=True, scale=0.0)
    for name, o in cut_objectives(2).items():
        pull = field(o, same)
        probability = same.logits.softmax(-1)
        inside = torch.zeros_like(probability).scatter(-1, same.ref_logits.topk(2).indices, 1.0)
        raised = (-pull * inside).sum(-1)[0].item()  # of the logits of the head, by a step
        said = "moves probability to" in o.effect, "moves probability away" in o.effect
        if "truncated" in name or "cropped_forward" in name:
            assert said == (raised > 1e-6, raised < -1e-6), name
        else:
            assert said == (False, False), name
            assert "cropped" in name or "clamped" in name or pull.norm() < 1e-12
