"""What a loss may look at: the checks at the door, and estimators that see completion tokens only."""

import dataclasses
import math
from dataclasses import replace

import pytest
import torch

from kl_companion import bandit, expected_value, prefix_tree
from kl_companion.estimators import ESTIMATORS
from kl_companion.rollout import (
    Rollout,
    check_rollout,
    per_token,
)
from tests.support.rollouts import doubles, sampled

# at the door


LOGITS = torch.tensor([[[0.0, math.log(3)], [math.log(4), 0.0]], [[0.0, 0.0], [1.0, 1.0]]]).double()
REF_LOGITS = torch.tensor([[[0.0, 0.0], [0.0, math.log(9)]], [[0.0, math.log(7)], [5.0, 5.0]]]).double()
TOKENS = torch.tensor([[1, 0], [1, 0]])
ONES = torch.ones(2, 2)


def test_log_probs_are_gathered_from_logits():
    rollout = Rollout.from_logits(
        TOKENS,
        ONES,
        LOGITS.clone().requires_grad_(),
        REF_LOGITS.clone().requires_grad_(),
        behavior_logits=(2 * LOGITS).requires_grad_(),
        rewards=torch.tensor([1.0, 2.0]),
        prompt_index=torch.tensor([4, 5]),
    )
    logp = doubles([3 / 4, 4 / 5], [1 / 2, 1 / 2]).log()
    torch.testing.assert_close(rollout.logp.detach(), logp, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        rollout.ref_logp, doubles([1 / 2, 1 / 10], [7 / 8, 1 / 2]).log(), rtol=1e-6, atol=0
    )
    behavior = doubles([9 / 10, 16 / 17], [1 / 2, 1 / 2]).log()
    torch.testing.assert_close(rollout.behavior_logp, behavior, rtol=1e-6, atol=0)
    assert rollout.logp.requires_grad
    for fixed in (rollout.ref_logp, rollout.behavior_logp, rollout.ref_logits, rollout.behavior_logits):
        assert not fixed.requires_grad
    assert rollout.logp_all.requires_grad
    assert not rollout.ref_logp_all.requires_grad
    torch.testing.assert_close(rollout.logp_all.exp().sum(-1), torch.ones(2, 2).double())
    torch.testing.assert_close(rollout.ref_logp_all[0, 1], doubles(1 / 10, 9 / 10).log(), rtol=1e-6, atol=0)
    assert rollout.rewards.tolist() == [1.0, 2.0]
    whole = replace(rollout, ref_logits=LOGITS.clone().requires_grad_())
    assert not whole.ref_logp_all.requires_grad
    assert rollout.group_index.tolist() == [4, 5]


def test_padding_may_hold_any_id_and_an_error_names_the_id_that_counts():
    mask = torch.tensor([[0, 1], [1, 1]])
    padded = torch.tensor([[-100, 0], [1, 0]])
    assert Rollout.from_logits(padded, mask, LOGITS, REF_LOGITS).logp.isfinite().all()


def test_whole_distributions_need_logits():
    for name in ("logp_all", "ref_logp_all"):
        wanted = f"{name.replace('logp_all', 'logits')} is needed; this Rollout holds sampled log-probs only"
        with pytest.raises(ValueError, match=wanted):
            getattr(sampled(), name)


def test_who_sampled_and_for_which_prompt():
    rollout = sampled(logp=doubles([-1.0] * 4, [-2.0] * 4).requires_grad_())
    assert torch.equal(rollout.sampled_from[1], doubles(-0.7, -0.25, -2.5, -1.6))
    on_policy = sampled(logp=rollout.logp, behavior_logp=None)
    assert torch.equal(on_policy.sampled_from, rollout.logp)
    assert not on_policy.sampled_from.requires_grad
    assert on_policy.group_index.tolist() == [0, 0]
    assert sampled(prompt_index=torch.tensor([3, 9])).group_index.tolist() == [3, 9]


# per token


def test_estimators_get_what_they_read():
    rollout = Rollout.from_logits(TOKENS, ONES, LOGITS, REF_LOGITS)
    k1 = rollout.logp - rollout.ref_logp
    for k in ("k1", ESTIMATORS["k1"], lambda logp, ref_logp: logp - ref_logp):
        assert torch.equal(per_token(k, rollout), k1)
    # first token: (1/4, 3/4) against (1/2, 1/2)
    wanted = 0.75 * math.log(1.5) - 0.25 * math.log(2)
    whole = per_token("exact_kl", rollout)
    assert whole.shape == (2, 2)
    assert whole[0, 0].item() == pytest.approx(wanted, rel=1e-6)
    scaled = per_token(lambda logp, ref_logp, scale: scale * logp, rollout, scale=3.0)
    assert torch.equal(scaled, 3 * rollout.logp)


@pytest.mark.parametrize("with_logits", [True, False])
def test_batches_are_what_building_each_anew_gives(with_logits):
    """Fields, absent ones included, and the gradient that comes back through a group with repetitions."""
    problem = prefix_tree(3, 2, seed=4, eos=True, off_policy=True)
    groups = [(0, 3), (2, 2), (6, 1)]
    found, wanted = [], []
    for out, anew in ((found, False), (wanted, True)):
        theta = problem.logits.clone().requires_grad_()
        every = problem.rollout(theta)
        if not with_logits:
            every = Rollout(every.tokens, every.completion_mask, every.logp, every.ref_logp)
        batches = every.batches(groups)
        total = 0.0
        for group, batch in zip(groups, batches, strict=True):
            if anew:
                batch = problem.rollout(theta, torch.tensor(group))
                if not with_logits:
                    batch = Rollout(batch.tokens, batch.completion_mask, batch.logp, batch.ref_logp)
            fields = [getattr(batch, f.name) for f in dataclasses.fields(batch)]
            out.append([None if x is None else x.detach() for x in fields])
            total = total + (batch.logp**2).sum()
        out.append(list(torch.autograd.grad(total, theta)))
    for mine, theirs in zip(found, wanted, strict=True):
        assert [x is None for x in mine] == [x is None for x in theirs]
        for x, y in zip(mine, theirs, strict=True):
            if x is not None:
                torch.testing.assert_close(x, y, rtol=1e-14, atol=1e-14)


def test_a_batch_with_repetitions_is_what_building_it_gives():
    """Fields and gradient, to the last digit; the logits are a leaf of the batch's own."""
    problem, index = prefix_tree(3, 2, seed=4, eos=True, off_policy=True), torch.tensor([0, 3, 2, 2, 6])
    every = problem.rollout(problem.logits)
    found, wanted = every.repeated(index), problem.rollout(problem.logits.clone().requires_grad_(), index)
    for f in dataclasses.fields(Rollout):
        mine, theirs = getattr(found, f.name), getattr(wanted, f.name)
        assert (mine is None) == (theirs is None), f.name
        assert mine is None or (torch.equal(mine, theirs) and mine.dtype == theirs.dtype), f.name
    assert found.logits.is_leaf
    slopes = [torch.autograd.grad((r.logp**3).sum(), r.logits)[0] for r in (found, wanted)]
    assert torch.equal(*slopes)


def test_tensors_are_exchanged_without_a_check():
    every = prefix_tree(2, 2).rollout(prefix_tree(2, 2).logits)
    found = every.unchecked(rewards=None, logp=every.logp + 1.0)  # above 0: refused at the door
    assert found.rewards is None
    assert torch.equal(found.logp, every.logp + 1.0)
    assert found.ref_logp is every.ref_logp
    check_rollout(found)
    found.ref_logp.add_(1.0)
    with pytest.raises(ValueError, match="logp is"):
        check_rollout(found)


def test_what_is_never_sampled_is_not_evaluated():
    """A policy may give a token no probability at all: its sequences have no log-ratio, and are not asked."""
    problem = bandit(3, seed=0)
    holed = problem._replace(logits=torch.tensor([[0.3, -torch.inf, -0.2]], dtype=torch.float64))
    seen = []

    def loss(rollout):
        seen.append(rollout.tokens.item())
        return (rollout.logp - rollout.ref_logp).sum()

    p = torch.tensor([0.3, -0.2], dtype=torch.float64).softmax(0)
    q = problem.ref_logits[0].softmax(0)[[0, 2]]
    assert expected_value(loss, holed) == pytest.approx((p * (p / q).log()).sum().item(), abs=1e-12)
    assert seen == [0, 2]
