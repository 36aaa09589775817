"""The ratio of the policy to the policy that sampled: value and Jacobian by hand, missing support refused."""

import pytest
import torch

from kl_companion.rollout import Rollout, importance_ratio, importance_weight
from tests.oracles import tokens as oracle
from tests.support.rollouts import INF, MASK, NAN, doubles, sampled

SCOPES = ["token", "prefix", "sequence"]


def rollout(outside=NAN, **changes):
    logp = sampled().logp.nan_to_num(outside).requires_grad_()
    return sampled(logp=logp, **changes)


def within(scope, s, t):
    """Whether the ratio at t holds the token s."""
    return {"token": s == t, "prefix": s <= t, "sequence": True}[scope]


def slopes(x, leaf):
    """d x[t] / d logp[s] of one sequence, [t, s], over its completion tokens."""
    out = []
    for t in range(len(x)):
        (g,) = torch.autograd.grad(x[t], leaf, retain_graph=True)
        out.append(g)
    return out


@pytest.mark.parametrize("outside", [NAN, -1e6, 3.0])
@pytest.mark.parametrize("on_policy", [False, True])
@pytest.mark.parametrize("scope", SCOPES)
def test_value_and_jacobian(scope, on_policy, outside):
    ro = rollout(outside, behavior_logp=None) if on_policy else rollout(outside)
    found = importance_ratio(ro, scope=scope)
    for i, row in enumerate(MASK.tolist()):
        inside = [t for t, m in enumerate(row) if m]
        logp, mu = (x[i, inside].tolist() for x in (ro.logp, ro.sampled_from))
        rho = oracle.weights(logp, mu, scope)
        assert found[i, inside].tolist() == pytest.approx(rho, rel=1e-13)
        if on_policy:
            assert found[i, inside].tolist() == [1.0] * len(inside)
        for a, g in enumerate(slopes(found[i, inside], ro.logp)):
            wanted = [rho[a] * within(scope, b, a) for b in range(len(inside))]
            assert g[i, inside].tolist() == pytest.approx(wanted, rel=1e-13)
            assert g.isfinite().all()
            g[i, inside] = 0
            assert g.abs().max() == 0  # neither the other sequence nor anything outside the mask


@pytest.mark.parametrize("scope", SCOPES)
def test_no_gradient_reaches_the_behavior_policy(scope):
    mu = sampled().behavior_logp.requires_grad_()
    ro = rollout(behavior_logp=mu)
    (g,) = torch.autograd.grad(importance_ratio(ro, scope=scope).sum(), mu, allow_unused=True)
    assert g is None


@pytest.mark.parametrize("scope", SCOPES)
def test_a_weight_is_the_ratio_without_its_gradient(scope):
    for options in ({}, {"clip": (0.9, 1.1)}):
        ratio = importance_ratio(rollout(), scope=scope, **options)
        weight = importance_weight(rollout(), scope=scope, **options)
        assert ratio.requires_grad
        assert not weight.requires_grad
        assert torch.equal(weight, ratio.detach())


@pytest.mark.parametrize("scope", SCOPES)
def test_a_clip_holds_value_and_gradient(scope):
    low, high = 0.85, 1.2
    ro = rollout()
    free, cut = importance_ratio(ro, scope=scope), importance_ratio(ro, scope=scope, clip=(low, high))
    seen = set()
    for i, t in MASK.nonzero().tolist():
        (slope,) = torch.autograd.grad(cut[i, t], ro.logp, retain_graph=True)
        rho = free[i, t].item()
        assert cut[i, t].item() == min(max(rho, low), high)
        if low < rho < high:
            assert slope[i, t].item() == pytest.approx(rho, rel=1e-14)
        else:
            assert slope.abs().max() == 0
        seen.add((rho > low) + (rho >= high))
    assert len(seen) > 1


# support


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("never", [-1e30, -2000.0])
def test_a_token_that_was_never_sampled_has_no_ratio(scope, never):
    mu = sampled().behavior_logp.clone()
    mu[1, 2] = never
    ro = rollout(behavior_logp=mu)
    wanted = r"behavior_logp\[1, 2\] is -.*: a probability of 0, expected the positive probability with which"
    for function in (importance_ratio, importance_weight):
        with pytest.raises(ValueError, match=wanted):
            function(ro, scope=scope)
    found = importance_ratio(ro, scope=scope, missing="ignore")
    gone = {"token": [2], "prefix": [2, 3], "sequence": [0, 1, 2, 3]}[scope]
    free = importance_ratio(rollout(), scope=scope)
    for t in range(4):
        assert found[1, t].item() == (0.0 if t in gone else free[1, t].item())
    (slope,) = torch.autograd.grad(found.sum(), ro.logp)
    assert slope.isfinite().all()
    assert torch.equal(found[0], free[0])


def test_what_stands_outside_the_mask_may_have_any_probability():
    mu = sampled().behavior_logp.clone()
    mu[0, 0] = -1e30
    assert importance_ratio(rollout(behavior_logp=mu), scope="sequence").isfinite().all()


def whole(behavior, policy=None, mask=(1, 1), tokens=(0, 0)):
    """One sequence of two tokens over three, with the distributions of policy and behavior."""
    logits = doubles([0.0, 0.0, 0.0], [1.0, 0.0, -1.0]) if policy is None else policy
    return Rollout.from_logits(
        torch.tensor([tokens]),
        torch.tensor([mask]),
        logits.unsqueeze(0),
        torch.zeros(1, 2, 3).double(),
        behavior_logits=behavior.unsqueeze(0),
    )


def test_mass_that_no_weight_makes_up_for_is_refused():
    cut = doubles([0.0, 0.0, 0.0], [1.0, -INF, 0.5])
    found = importance_ratio(whole(cut), scope="token", missing="ignore")
    p, q = cut.exp()[1, 0] / cut.exp()[1].sum(), doubles(1.0, 0.0, -1.0).softmax(-1)[0]
    assert found[0].tolist() == pytest.approx([1.0, (q / p).item()], rel=1e-13)
    # nothing is lost where the policy has no mass either, outside the mask, or where it cannot be seen
    same = doubles([0.0, 0.0, 0.0], [2.0, -INF, 0.0])
    assert importance_ratio(whole(cut, policy=same), scope="token").isfinite().all()
    for low in (-INF, -1e30):
        outside = importance_ratio(whole(cut.clamp(min=low), mask=(1, 0)), scope="token")
        assert outside.isfinite().all()
    ro = whole(cut)
    for seen in ({}, {"logits": ro.logits}, {"behavior_logits": ro.behavior_logits}):
        blind = Rollout(ro.tokens, ro.completion_mask, ro.logp, ro.ref_logp, ro.behavior_logp, **seen)
        assert importance_ratio(blind, scope="token").isfinite().all()
    # the reverse, mass of the behavior policy where the policy has none, costs nothing
    assert importance_ratio(whole(torch.zeros(2, 3).double(), policy=cut), scope="token").isfinite().all()


def test_a_token_that_is_never_sampled_anywhere_is_missed_at_its_first_place():
    for low in (-INF, -1e30):
        everywhere = doubles([0.0, low, 0.0], [1.0, low, 0.5])
        with pytest.raises(ValueError, match=r"gives token 1 at \[0, 0\] probability 0, the policy 0\.333"):
            importance_ratio(whole(everywhere), scope="token")


def test_half_precision_is_not_taken_for_missing_support():
    logp = torch.tensor([[-17.5, -1.0]], dtype=torch.float16)  # exp(-17.5) is 0 in float16
    assert logp.exp()[0, 0] == 0
    zeros = torch.zeros(1, 2)
    ro = Rollout(zeros.long(), zeros + 1, logp, logp, behavior_logp=logp)
    assert importance_ratio(ro, scope="token").tolist() == [[1.0, 1.0]]
    logits = torch.tensor([[[0.0, -16.0, -18.0]]], dtype=torch.float16)
    ones = torch.ones(1, 1)
    ro = Rollout.from_logits(ones.long() * 0, ones, logits, logits, behavior_logits=logits + logits / 8)
    assert importance_ratio(ro, scope="token").isfinite().all()
