"""Open-On-Policy-Distillation: heads, log-probs that the teacher did not list, losses without a teacher."""

import math

import pytest
import torch

from kl_companion.frameworks import open_opd, setting
from tests.support.frameworks.by_hand import rollout
from tests.support.frameworks.one_token import gradients, one_token

STUDENT, TEACHER = (0.3, 0.6, 0.1), (0.01, 0.9, 0.09)  # heads of two: {1, 0} and {1, 2}


def test_log_probs_that_the_teacher_did_not_list_are_the_students_own():
    """The mass of the teacher's head is then 0.9 + 0.3, and its rest the least that there is."""
    r = one_token(STUDENT, TEACHER)
    head = 0.6 * math.log(0.6 / 0.9)  # 0.3 log(0.3 / 0.3) is 0
    rest = 0.1 * (math.log(0.1) - math.log(1e-8))
    mode = "full_vocab_topk_reverse_kl"
    assert open_opd.heads(mode, 2, 2, r).item() == pytest.approx(head + rest)
    assert open_opd.heads("topk_reverse_kl_notail", 2, 2, r).item() == pytest.approx(head)
    whole = 0.3 * math.log(30) + head + 0.1 * math.log(0.1 / 0.09)
    assert open_opd.heads(mode, 2, 3, r).item() == pytest.approx(whole)


def test_without_the_stopped_gradient_a_token_that_is_not_listed_is_pushed_down():
    for mode, pushed in (("topk_reverse_kl_notail", True), ("topk_reverse_kl_notail_sg", False)):
        r = one_token(STUDENT, TEACHER)
        (slope,) = torch.autograd.grad(open_opd.heads(mode, 2, 2, r).sum(), r.logits)
        only = 0.6 * (math.log(0.6 / 0.9) + pushed)  # of token 1, for both
        other = 0.3 * pushed  # of token 0, whose log-ratio is zero
        wanted = [other - 0.3 * (only + other), only - 0.6 * (only + other), -0.1 * (only + other)]
        assert slope.flatten().tolist() == pytest.approx(wanted)


def test_the_intersection_is_renormalized_and_its_gradient_that_of_its_kl():
    """Heads of two in four tokens, which share one or both; the gradient against a written-out KL."""
    mode = "topk_reverse_kl_intersect_sg_norm"
    r = one_token((0.4, 0.35, 0.15, 0.1), (0.3, 0.45, 0.05, 0.2))
    (slope,) = torch.autograd.grad(open_opd.heads(mode, 2, 2, r).sum(), r.logits)
    p = torch.softmax(r.logits.detach()[0, 0, :2], -1)
    d = (p / torch.tensor([0.4, 0.6], dtype=torch.float64)).log()
    inner = p * (d - (p * d).sum())
    assert slope.flatten().tolist() == pytest.approx([*inner.tolist(), 0, 0])
    lone = one_token(STUDENT, TEACHER)
    assert open_opd.heads(mode, 2, 2, lone).item() == pytest.approx(0)


@pytest.mark.parametrize("name", ["open_opd.loss_token_reverse_kl", "open_opd.opsd_decoded_kl"])
def test_losses_of_the_sampled_token_have_the_same_gradient_whoever_teaches(name):
    slopes = []
    for reference in ((0.25, 0.8), (0.9, 0.1)):
        r = rollout(reference=reference)
        slopes.append(torch.autograd.grad(setting(name).loss(r), r.logits)[0])
    assert torch.equal(*slopes)


def test_heads_are_those_of_the_student_when_it_sampled():
    r = one_token(STUDENT, TEACHER, sampler=(0.1, 0.1, 0.8))
    assert open_opd.heads("topk_reverse_kl_notail", 1, 3, r).item() == pytest.approx(
        0.1 * math.log(0.1 / 0.09)
    )
    frozen = open_opd.heads("topk_reverse_kl_notail", 1, 3, r, frozen=True)
    assert frozen.item() == pytest.approx(0.8 * math.log(0.8 / 0.09))
    assert not frozen.requires_grad


@pytest.mark.parametrize(
    ("formula", "function", "off_policy"),
    [
        ("open_opd.token_reverse_kl", "torchrl.reward", True),
        ("open_opd.opsd_jsd", "trl.sdpo_full_jensen_shannon", False),
        ("open_opd.opsd_reverse_kl", "trl.sdpo_full_reverse", False),
        ("open_opd.opsd_forward_kl", "trl.sdpo_full_forward", False),
        ("open_opd.opsd_topk_tail_kl", "trl.sdft_reverse_top_1_tail", False),
        ("open_opd.loss_full_vocab_topk_reverse_kl_listed", "trl.iw_opd_reverse_top_1_tail", False),
        ("open_opd.loss_topk_reverse_kl_intersect_sg_norm_listed", "trl.iw_opd_reverse_top_2_no_tail", False),
    ],
)
def test_a_formula_beside_the_function_that_has_the_same_gradient(formula, function, off_policy):
    found = gradients(formula, function, off_policy)
    assert (found[0] - found[1]).abs().max() < 1e-7 * found[1].abs().max()
