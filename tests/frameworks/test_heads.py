"""Sums over heads: the rest of a head, log-probs that a teacher did not list, whose head it is."""

import math

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.estimators.top_k import top_k_forward_kl, top_k_reverse_kl
from kl_companion.frameworks import heads, setting
from tests.support.frameworks.by_hand import rollout
from tests.support.frameworks.one_token import one_token

STUDENT, TEACHER = (0.3, 0.6, 0.1), (0.01, 0.9, 0.09)  # heads of two: {1, 0} and {1, 2}


def of_both(rollout, mode, k, listed, **options):
    return heads.student_and_teacher_heads(rollout, mode=mode, k=k, listed=listed, **options)


def test_a_head_with_no_rest_is_no_divergence():
    """Where both agree the ghost's term has no gradient; without it the head's mass is pulled up."""
    slopes = []
    for ghost in (True, False):
        r = one_token((0.5, 0.3, 0.2), (0.5, 0.3, 0.2))
        slopes.append(
            torch.autograd.grad(heads.reference_head(r, k=2, ghost=ghost).sum(), r.logits)[0].flatten()
        )
    assert slopes[0].abs().max() < 1e-12
    # the slope of -(0.5 log p0 + 0.3 log p1) is 0.8 p - (0.5, 0.3, 0)
    assert slopes[1].tolist() == pytest.approx([-0.1, -0.06, 0.16])


def test_the_rest_is_kept_from_being_zero():
    """Of two tokens nothing is left, for both; 1e-8 log 1 is added."""
    r = one_token((0.4, 0.6), (0.7, 0.3))
    exact = 0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6)
    assert heads.reference_head(r, k=2, ghost=True).item() == pytest.approx(exact, abs=1e-9)


def test_log_probs_that_the_teacher_did_not_list_are_the_students_own():
    """The mass of the teacher's head is then 0.9 + 0.3, and its rest the least that there is."""
    r = one_token(STUDENT, TEACHER)
    head = 0.6 * math.log(0.6 / 0.9)  # 0.3 log(0.3 / 0.3) is 0
    rest = 0.1 * (math.log(0.1) - math.log(1e-8))
    mode = "full_vocab_topk_reverse_kl"
    assert of_both(r, mode, 2, 2).item() == pytest.approx(head + rest)
    assert of_both(r, "topk_reverse_kl_notail", 2, 2).item() == pytest.approx(head)
    whole = 0.3 * math.log(30) + head + 0.1 * math.log(0.1 / 0.09)
    assert of_both(r, mode, 2, 3).item() == pytest.approx(whole)


def test_without_the_stopped_gradient_a_token_that_is_not_listed_is_pushed_down():
    for mode, pushed in (("topk_reverse_kl_notail", True), ("topk_reverse_kl_notail_sg", False)):
        r = one_token(STUDENT, TEACHER)
        (slope,) = torch.autograd.grad(of_both(r, mode, 2, 2).sum(), r.logits)
        only = 0.6 * (math.log(0.6 / 0.9) + pushed)  # of token 1, for both
        other = 0.3 * pushed  # of token 0, whose log-ratio is zero
        wanted = [other - 0.3 * (only + other), only - 0.6 * (only + other), -0.1 * (only + other)]
        assert slope.flatten().tolist() == pytest.approx(wanted)


def test_the_intersection_is_renormalized_and_its_gradient_that_of_its_kl():
    """Heads of two in four tokens, which share one or both; the gradient against a written-out KL."""
    mode = "topk_reverse_kl_intersect_sg_norm"
    r = one_token((0.4, 0.35, 0.15, 0.1), (0.3, 0.45, 0.05, 0.2))
    (slope,) = torch.autograd.grad(of_both(r, mode, 2, 2).sum(), r.logits)
    p = torch.softmax(r.logits.detach()[0, 0, :2], -1)
    d = (p / torch.tensor([0.4, 0.6], dtype=torch.float64)).log()
    inner = p * (d - (p * d).sum())
    assert slope.flatten().tolist() == pytest.approx([*inner.tolist(), 0, 0])
    lone = one_token(STUDENT, TEACHER)
    assert of_both(lone, mode, 2, 2).item() == pytest.approx(0)


@pytest.mark.parametrize("name", ["open_opd.loss_token_reverse_kl", "open_opd.opsd_decoded_kl"])
def test_losses_of_the_sampled_token_have_the_same_gradient_whoever_teaches(name):
    slopes = []
    for reference in ((0.25, 0.8), (0.9, 0.1)):
        r = rollout(reference=reference)
        slopes.append(torch.autograd.grad(setting(name).loss(r), r.logits)[0])
    assert torch.equal(*slopes)


def test_heads_are_those_of_the_student_when_it_sampled():
    r = one_token(STUDENT, TEACHER, sampler=(0.1, 0.1, 0.8))
    assert of_both(r, "topk_reverse_kl_notail", 1, 3).item() == pytest.approx(0.1 * math.log(0.1 / 0.09))
    frozen = of_both(r, "topk_reverse_kl_notail", 1, 3, frozen=True)
    assert frozen.item() == pytest.approx(0.8 * math.log(0.8 / 0.09))
    assert not frozen.requires_grad


def test_the_top_k_of_miles_is_the_same_whichever_token_was_sampled():
    """Of the two likeliest of (0.5, 0.3, 0.2) with a teacher of (0.1, 0.6, 0.3): 5/8 and 3/8 of two logs."""
    student, teacher = (
        torch.tensor(p, dtype=torch.float64).log().expand(3, 1, 3) for p in ((0.5, 0.3, 0.2), (0.1, 0.6, 0.3))
    )
    problem = rollout(off_policy=False).from_logits(
        torch.tensor([[0], [1], [2]]), torch.ones(3, 1, dtype=torch.float64), student, teacher
    )
    wanted = 5 / 8 * math.log(0.5 / 0.1) + 3 / 8 * math.log(0.3 / 0.6)
    assert heads.sampler_head(problem, k=2).flatten().tolist() == pytest.approx([wanted] * 3, abs=1e-12)


def test_the_top_k_of_miles_is_the_samplers():
    assert heads.sampler_head(rollout(), k=2)[0, 0].item() == pytest.approx(
        0.4 * math.log(0.4 / 0.25) + 0.6 * math.log(0.6 / 0.75), abs=1e-12
    )
    assert heads.sampler_head(rollout(), k=1)[0, 0].item() == pytest.approx(math.log(0.6 / 0.75), abs=1e-12)


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_the_released_top_k_is_the_published_form(direction):
    """EMA-PG's code and the algorithms of its paper, on-policy."""
    problem = prefix_tree(3, 3, seed=0, eos=True)
    r = problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))
    published = (top_k_reverse_kl if direction == "reverse" else top_k_forward_kl)(
        r.logp_all, r.ref_logp_all, r.tokens, k=1, form="published"
    )
    ours = heads.exact_head_and_sampled_tail(r, direction=direction, k=1, kl_iw=False)
    inside = r.completion_mask.bool()
    assert torch.allclose(ours[inside], published[inside], atol=1e-12)
    gradients = [
        torch.autograd.grad(x[inside].sum(), r.logits, retain_graph=True)[0] for x in (ours, published)
    ]
    assert torch.allclose(*gradients, atol=1e-12)
