"""Megatron-LM, RPG and Open-On-Policy-Distillation: clamps, what stands for the reference, heads, equals."""

import math

import pytest
import torch

from kl_companion import Rollout, expected_gradient, prefix_tree
from kl_companion.auditing.exact import exactly
from kl_companion.frameworks import megatron, open_opd, rpg, setting
from kl_companion.frameworks.recipes import charged_with
from tests.support.frameworks.by_hand import rollout


def world(off_policy=True, scale=1.0):
    return prefix_tree(3, 2, seed=4, eos=True, off_policy=off_policy, scale=scale)


def batch(off_policy=True, scale=6.0):
    """Log-ratios of which some are clamped."""
    problem = prefix_tree(3, 3, seed=2, eos=True, off_policy=off_policy, scale=scale)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 3, 5, 9, 12]))


def one_token(policy, teacher, token=0, sampler=None):
    def logits(p):
        return torch.tensor([[p]], dtype=torch.float64).log()

    return Rollout.from_logits(
        torch.tensor([[token]]),
        torch.ones(1, 1, dtype=torch.float64),
        logits(policy).requires_grad_(),
        logits(teacher),
        behavior_logits=None if sampler is None else logits(sampler),
    )


# -- RPG ---------------------------------------------------------------------------------------------------


def to_the_sampler(problem, reverse, forward):
    """Gradient of both KLs of every next token between policy and sampler, [rows, vocab], by visits."""
    theta = problem.logits.clone().requires_grad_()
    r = problem.rollout(theta)
    visits = (r.sampled_from * r.completion_mask).cumsum(-1) - r.sampled_from  # before each token
    seen, total = set(), 0.0
    for i in range(len(r.tokens)):
        for t in range(int(r.completion_mask[i].sum())):
            prefix = tuple(r.tokens[i, :t].tolist())
            if prefix in seen:
                continue
            seen.add(prefix)
            p, q = r.logp_all[i, t], r.behavior_logp_all[i, t]
            here = reverse * (p.exp() * (p - q)).sum() + forward * (q.exp() * (q - p)).sum()
            total = total + visits[i, t].exp() * here
    return torch.autograd.grad(total, theta)[0]


@pytest.mark.parametrize(
    ("kind", "reverse", "forward"),
    [
        ("rkl", 1, 0),
        ("urkl", 1, 0),
        ("fkl", 0, 1),
        ("ufkl", 0, 1),
        ("ujs", 0.5, 0.5),  # the average of both, which is no Jensen-Shannon divergence
        ("js", 0.5, -0.5),  # the comment has a plus
    ],
)
def test_with_the_old_policy_as_the_reference_rpg_descends_kls_to_the_old_policy(kind, reverse, forward):
    problem = world()
    terms = rpg._old(lambda r: rpg.loss_terms(kind, r))
    found = expected_gradient(lambda r: (terms(r) * r.completion_mask).sum(-1).mean(), problem)
    assert (found - to_the_sampler(problem, reverse, forward)).norm() < 1e-12 * (1 + found.norm())


@pytest.mark.parametrize("kind", ["rkl", "ufkl", "urkl", "js", "ujs"])
def test_rpg_clamps_at_ten_where_the_policy_is_far_above_the_reference(kind):
    near, far = one_token((0.5, 0.5), (0.25, 0.75)), one_token((0.5, 0.5), (0.002, 0.998))
    assert rpg.loss_terms("fkl", far).item() == pytest.approx(-math.log(250))
    assert rpg.loss_terms(kind, far).item() == 10
    assert 0 < rpg.loss_terms(kind, near).item() < 10


def test_rpgs_shipped_penalties_in_the_reward_are_constants():
    r = batch(off_policy=False, scale=1.0)
    ahead = r.completion_mask.flip(-1).cumsum(-1).flip(-1) * r.completion_mask
    for kind, each in {"fkl": -1, "rkl": 1, "ufkl": 0, "urkl": 0}.items():
        charged = charged_with(setting(f"rpg.reward_{kind}_old"), r)
        assert torch.allclose(charged, each * ahead, atol=1e-12)


# -- Megatron ----------------------------------------------------------------------------------------------


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


# -- Open-On-Policy-Distillation ---------------------------------------------------------------------------

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


# -- the same as others ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "function", "off_policy"),
    [
        ("megatron.grpo", "liger.grpo", True),
        ("megatron.top_1_ghost", "trl.iw_opd_forward_top_1_tail", True),
        ("megatron.top_1_no_tail", "open_opd.opsd_topk_forward_kl", True),
        ("rpg.loss_low_var_kl", "verl.loss_k3", True),
        ("rpg.loss_mse", "verl.loss_k2", True),
        ("rpg.reward_kl", "openrlhf.reward_k1", True),
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
    found = []
    for name in (formula, function):
        r = batch(off_policy, scale=3.0)
        found.append(torch.autograd.grad(exactly(setting(name).loss)(r), r.logits)[0])
    assert (found[0] - found[1]).abs().max() < 1e-7 * found[1].abs().max()
