"""Angle and length of a gradient beside the one that was meant, from gradients written prefix by prefix."""

import math

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.adapt import as_loss
from kl_companion.auditing.distance import KLS, distances, world
from tests.oracles import worlds
from tests.support.objectives import world_of


def gradients(kl, *names):
    p = world(kl).problem
    found = []
    for name in names:
        theta = p.logits.clone().requires_grad_()
        worlds.token_level(world_of(p), theta, p.ref_logits, p.logits, name).backward()
        found.append(theta.grad.flatten())
    return found


@pytest.mark.parametrize("kl", [*KLS, 1e-4, 3.0])
def test_the_kl_per_token_is_reached(kl):
    made = world(kl)
    listed, p = world_of(made.problem), made.problem
    total = worlds.token_level(listed, p.logits, p.ref_logits, p.logits, "reverse_kl").item()
    assert total / worlds.over_leaves(listed, p.logits, len) == pytest.approx(kl, abs=1e-9)
    assert not p.rewards.any()
    assert torch.equal(p.logits, world(0.5).problem.logits)  # only the reference moves


@pytest.mark.parametrize("name", ["k2", "k4", "exact_kl"])
def test_the_loss_that_was_meant_is_at_no_distance(name):
    for found in distances(as_loss(name), "token_reverse_kl"):
        assert found.degrees < 1e-4
        assert found.percent == pytest.approx(100)


@pytest.mark.parametrize("beta", [1.0, 0.02])
def test_k3_is_as_far_from_the_reverse_kl_as_the_forward_kl(beta):
    near = gradients(1e-4, "forward_kl", "reverse_kl")
    strength = near[0].norm() / near[1].norm()
    found = distances(lambda ro: beta * as_loss("k3")(ro), "token_reverse_kl")
    assert [d.kl for d in found] == list(KLS)
    for d in found:
        mine, theirs = gradients(d.kl, "forward_kl", "reverse_kl")
        cosine = (mine @ theirs / mine.norm() / theirs.norm()).item()
        assert d.degrees == pytest.approx(math.degrees(math.acos(cosine)), abs=1e-6)
        assert d.percent == pytest.approx(100 * (mine.norm() / theirs.norm() / strength).item())
    assert found[0].degrees < found[1].degrees < found[2].degrees


@pytest.mark.parametrize(
    "loss",
    [
        lambda ro: (ro.logp - ro.ref_logp).mul(ro.completion_mask).sum(-1).mean(),  # moves nothing
        lambda ro: -(ro.logp * ro.completion_mask).sum(-1).mul(ro.rewards).mean(),  # nothing but rewards
        lambda ro: (ro.logp / ro.rewards.std() * ro.rewards[:, None]).sum(-1).mean(),  # NaN without rewards
    ],
)
def test_no_gradient_no_distance(loss):
    assert distances(loss, "token_reverse_kl") == ()


def test_an_audit_compares_what_is_not_as_meant():
    far = audit("k3", scale=1.0, off_policy=False)
    assert (far.compared, len(far.distances)) == ("token_reverse_kl", 3)
    assert audit("k2", scale=1.0, off_policy=False).distances == ()
    assert audit("k3", scale=1.0, off_policy=False, level="sequence").compared == "sequence_reverse_kl"
    assert audit("k3", scale=1.0, off_policy=False, want="token_pearson").compared == "token_pearson"


def test_a_gradient_that_does_not_vanish_at_the_reference_has_no_strength_there():
    def beside_an_entropy(ro):
        return as_loss("exact_kl")(ro) + (ro.logp_all.exp() * ro.logp_all).sum(-1).sum() / len(ro.tokens)

    found = distances(beside_an_entropy, "token_reverse_kl")
    assert [math.isnan(d.percent) for d in found] == [True] * 3
    assert all(d.degrees > 1 for d in found)
