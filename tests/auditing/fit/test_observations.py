"""The worlds on which a loss is looked at, what is put together there, and small groups beside large ones."""

import itertools
import math

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.fit.observations import factors, gaps, look
from kl_companion.auditing.worlds.objectives import objectives
from kl_companion.auditing.worlds.trees import Condition, worlds
from kl_companion.tabular.populations import population_tree
from tests.oracles import worlds as oracle
from tests.support.batch_losses import centered, masked_mean, normalized, squares
from tests.support.objectives import world_of

FRESH, STALE = Condition(False, True, 1.0), Condition(True, True, 1.0)


def of_group(world, policy, reference, name, group):
    """The two losses on one group of answers, from log-probs that are looked up one by one."""
    if name == "masked mean":
        each = []
        for leaf in group:
            rows = [world["row"][leaf[:i]] for i in range(len(leaf))]
            p, q = (oracle.log_probs(x)[rows, list(leaf)] for x in (policy, reference))
            each.append(((p - q) ** 2 / 2).sum())
        return sum(each) / sum(len(leaf) for leaf in group)
    rewards = dict(zip(world["leaves"], world["reward"], strict=True))
    mean = sum(rewards[x] for x in group) / len(group)
    return sum(-(rewards[x] - mean) * oracle.log_prob(world, policy, x) for x in group) / len(group)


@pytest.mark.parametrize(("name", "loss"), [("masked mean", masked_mean), ("centered", centered)])
def test_gaps_against_enumerated_groups(name, loss):
    p = population_tree(2, 2, seed=0, eos=True).problem
    world, theta = world_of(p), p.logits.clone().requires_grad_()
    chance = {x: oracle.log_prob(world, p.logits, x).exp().item() for x in world["leaves"]}

    def field(size):
        theta.grad = None
        for group in itertools.product(world["leaves"], repeat=size):
            weight = math.prod(chance[x] for x in group)
            (weight * of_group(world, theta, p.ref_logits, name, group)).backward()
        return theta.grad.flatten().clone()

    found = gaps(loss, FRESH)
    assert [g.size for g in found] == [2, 3, 4]
    if name == "centered":  # its shape is that of one answer, times (n - 1)/n
        assert [g.ratio for g in found] == pytest.approx([1 / 2, 2 / 3, 3 / 4])
        assert all(g.degrees < 1e-5 for g in found)
        return
    theta.grad = None
    tokens = sum(chance[x] * len(x) for x in chance)
    for x in chance:
        (chance[x] * of_group(world, theta, p.ref_logits, name, [x]) * len(x) / tokens).backward()
    limit = theta.grad.flatten().clone()
    for g in found:
        mine = field(g.size)
        cosine = (mine @ limit / mine.norm() / limit.norm()).item()
        assert g.degrees == pytest.approx(math.degrees(math.acos(cosine)), abs=1e-6)
        assert g.ratio == pytest.approx((mine.norm() / limit.norm()).item())


def test_groups_of_a_loss_without_a_gradient_in_large_batches():
    """Of K1 over all tokens of a group: the divisor and the scores of a group depend on each other."""

    def mean_k1(logp, ref_logp, mask):
        return ((logp - ref_logp) * mask).sum() / mask.sum()

    p = population_tree(2, 2, seed=0, eos=True).problem
    chance = p.token_logp(p.logits).sum(-1).exp()
    theta = p.logits.clone().requires_grad_()
    scores = p.token_logp(theta).sum(-1)
    lengths = p.completion_mask.sum(-1)
    pairs = itertools.product(range(len(chance)), repeat=2)
    loss = sum(chance[i] * chance[j] * (scores[i] + scores[j]) / (lengths[i] + lengths[j]) for i, j in pairs)
    assert torch.autograd.grad(loss, theta)[0].norm() > 0.01
    verdict = audit(mean_k1, scale=1.0, off_policy=False)
    assert [g.ratio for g in verdict.main.gaps] == [math.inf] * 3
    text = " ".join(str(verdict).split())
    assert "In groups of 2, 3, 4 the expected gradient is not zero." in text
    assert "nan" not in text


def test_groups_that_have_no_gradient_are_said():
    found = gaps(normalized, FRESH)  # two equal rewards have no deviation
    assert [(g.size, g.fails) for g in found] == [(2, True), (3, True), (4, True)]
    assert not any(g.fails for g in gaps(centered, FRESH))


def test_units_of_a_world():
    made = worlds(STALE, 3)[1]
    p = made.problem
    found = factors(p)
    assert found["tokens"] == pytest.approx(oracle.over_leaves(world_of(p), p.behavior_logits, len))
    assert found["deviation"] == pytest.approx(made.rewards_deviation)
    assert (found[""], found["positions"]) == (1.0, 2.0)
    assert found["tokens"] == pytest.approx(made.tokens_per_answer)


@pytest.mark.parametrize("group_size", [None, 1, 2])
def test_a_loss_in_the_limit_and_on_groups_of_the_size_asked_for(group_size):
    known = objectives(off_policy=False, lengths=True, heads=False)
    found = look(centered, FRESH, group_size=group_size, known=known)
    assert len(found.worlds) == 4
    assert (found.sums, found.settles) == (False, True)
    for seen in found.worlds:
        assert seen.zero is (group_size == 1)  # one answer is its own mean
        shrunk = {None: 1.0, 1: 0.0, 2: 0.5}[group_size]
        torch.testing.assert_close(
            seen.gradient, -shrunk * seen.fields["expected_reward"], rtol=1e-9, atol=1e-12
        )
    assert look(lambda ro: squares(ro).sum(), FRESH, group_size=None, known=known).sums
    assert not look(
        lambda ro: squares(ro).sum() * len(ro.tokens), FRESH, group_size=None, known=known
    ).settles


@pytest.mark.parametrize("clamp", [{"max": 10.0}, {"min": -10.0, "max": 10.0}])
def test_a_clamp_is_met_where_ratios_are_large(clamp):
    def clamped(logp, ref_logp):
        return ((logp - ref_logp) ** 2 / 2).clamp(**clamp)

    near, far = (audit(clamped, off_policy=False, scale=scale) for scale in (1.0, 4.0))
    assert near.matches == {"token_reverse_kl": 1.0}
    assert [f.matches for f in far.findings] == [(), ()]
