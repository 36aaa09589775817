"""Batches in exact proportion, and the limit of large batches against weights that are written out."""

import dataclasses
import math

import pytest
import torch

from kl_companion.rollout import leave_one_out
from kl_companion.tabular import prefix_tree
from kl_companion.tabular.populations import (
    batch_gradient,
    large_batches,
    population_rollout,
    population_tree,
)
from tests.oracles import worlds
from tests.support.objectives import world_of

TREES = [
    {"parts": 6},
    {"parts": 6, "eos": True},
    {"parts": 7, "eos": True, "off_policy": True, "scale": 4.0},
    {"vocab": 2, "length": 3, "parts": 5, "eos": True, "off_policy": True},
    {"vocab": 3, "length": 2, "parts": 3, "off_policy": True},
    {"vocab": 3, "length": 2, "parts": (4, 9), "eos": True},
    {"vocab": 2, "length": 3, "parts": (3, 2, 5), "off_policy": True},
]


@pytest.mark.parametrize("options", TREES)
def test_a_batch_holds_every_sequence_in_exact_proportion(options):
    made = population_tree(**options, seed=3)
    world, p = world_of(made.problem), made.problem
    chances = [worlds.log_prob(world, p.sampled_from, leaf).exp().item() for leaf in world["leaves"]]
    length, parts = options.get("length", 2), options["parts"]
    places = (parts,) * length if isinstance(parts, int) else parts
    rows = math.prod(places)
    assert len(made.which) == rows
    assert (made.which.bincount().double() / rows).tolist() == pytest.approx(chances, abs=1e-13)
    for place, n in enumerate(places):
        inside = p.completion_mask[:, place] > 0
        counts = p.sampled_from.softmax(-1)[p.rows[inside, place]] * n
        torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-12)
        assert counts.min() > 0.99
    lengths = [len(leaf) for leaf in world["leaves"]]
    assert made.tokens_per_answer == pytest.approx(sum(c * n for c, n in zip(chances, lengths, strict=True)))
    mean = sum(c * r for c, r in zip(chances, world["reward"], strict=True))
    spread = sum(c * (r - mean) ** 2 for c, r in zip(chances, world["reward"], strict=True))
    assert made.rewards_deviation == pytest.approx(spread**0.5)


@pytest.mark.parametrize("options", TREES)
def test_policies_keep_the_distances_of_the_tree(options):
    made = population_tree(**options, seed=3).problem
    tree = prefix_tree(**{n: v for n, v in options.items() if n != "parts"}, seed=3)
    torch.testing.assert_close(made.logits - made.ref_logits, tree.logits - tree.ref_logits)
    if options.get("off_policy"):
        torch.testing.assert_close(made.behavior_logits - made.logits, tree.behavior_logits - tree.logits)
    else:
        assert made.behavior_logits is None


@pytest.mark.parametrize("parts", [10, 11, 17])
def test_no_two_tokens_of_a_ranked_tree_are_equally_likely(parts):
    problem = population_tree(4, 2, parts=parts, seed=1, scale=0.1, ranked=True).problem
    counts = (problem.sampled_from.softmax(-1) * parts).sort(-1).values
    torch.testing.assert_close(counts, counts.round())
    assert (counts.sum(-1).round() == parts).all()
    assert (counts.diff(dim=-1) > 0.5).all()
    plain = population_tree(4, 2, parts=parts, seed=1, scale=0.1).problem
    assert (plain.sampled_from.softmax(-1).sort(-1).values.diff(dim=-1) < 1e-9).any()


def squares(ro):
    return (ro.logp - ro.ref_logp) ** 2 / 2 * ro.completion_mask


def total(ro):
    return (ro.logp * ro.completion_mask).sum(-1)


def steps(world, policy, reference, leaf):
    """Half the squared log-ratios of an answer's tokens, summed."""
    each = [
        worlds.log_probs(x)[[world["row"][leaf[:i]] for i in range(len(leaf))], list(leaf)]
        for x in (policy, reference)
    ]
    return ((each[0] - each[1]) ** 2 / 2).sum()


def scored(world, policy, sampler, advantage):
    """The log-likelihood of answers times minus their advantage."""
    return worlds.over_leaves(
        world, sampler, lambda leaf: -advantage(leaf) * worlds.log_prob(world, policy, leaf)
    )


def mean_length(world, sampler):
    return worlds.over_leaves(world, sampler, len)


def reward(world):
    return dict(zip(world["leaves"], world["reward"], strict=True)).get


def moments(world, sampler):
    mean = worlds.over_leaves(world, sampler, reward(world))
    return mean, worlds.over_leaves(world, sampler, lambda x: (reward(world)(x) - mean) ** 2) ** 0.5


def centered(world, policy, reference, sampler):
    mean, _ = moments(world, sampler)
    return scored(world, policy, sampler, lambda x: reward(world)(x) - mean)


def normalized(world, policy, reference, sampler):
    mean, deviation = moments(world, sampler)
    return scored(world, policy, sampler, lambda x: (reward(world)(x) - mean) / deviation)


def of_tokens(world, policy, reference, sampler):
    return worlds.over_leaves(world, sampler, lambda x: steps(world, policy, reference, x))


# a loss on a batch; the same in the limit, from the chances of all answers; whether it is a sum
LOSSES = {
    "mean over answers": (lambda ro: squares(ro).sum(-1).mean(), of_tokens, False),
    "sum over the batch": (lambda ro: squares(ro).sum(), of_tokens, True),
    "mean over tokens": (
        lambda ro: squares(ro).sum() / ro.completion_mask.sum(),
        lambda w, p, r, s: of_tokens(w, p, r, s) / mean_length(w, s),
        False,
    ),
    "mean of means": (
        lambda ro: (squares(ro).sum(-1) / ro.completion_mask.sum(-1)).mean(),
        lambda w, p, r, s: worlds.over_leaves(w, s, lambda x: steps(w, p, r, x) / len(x)),
        False,
    ),
    "centered": (lambda ro: -((ro.rewards - ro.rewards.mean()) * total(ro)).mean(), centered, False),
    "leave one out": (
        lambda ro: (
            -(leave_one_out(ro.rewards, torch.zeros(len(ro.rewards), dtype=torch.long)) * total(ro)).mean()
        ),
        centered,
        False,
    ),
    "over torch.std": (
        lambda ro: -((ro.rewards - ro.rewards.mean()) / ro.rewards.std() * total(ro)).mean(),
        normalized,
        False,
    ),
}


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_the_limit_of_large_batches(name, eos, off_policy):
    loss, wanted, sums = LOSSES[name]
    made = population_tree(3, 2, parts=6, seed=1, eos=eos, off_policy=off_policy)
    p, theta = made.problem, made.problem.logits.clone().requires_grad_()
    truth = wanted(world_of(p), theta, p.ref_logits, p.sampled_from)
    (gradient,) = torch.autograd.grad(truth, theta)
    found = large_batches(loss, made)
    assert (found.sums, found.settles) == (sums, True)
    assert (found.gradient - gradient).norm() < 1e-12 * gradient.norm()
    assert found.value == pytest.approx(truth.item(), rel=1e-11)
    assert found.contributions >= found.gradient.abs().sum().item() * (1 - 1e-12)


@pytest.mark.parametrize(
    "loss",
    [
        lambda ro: squares(ro).sum() * len(ro.tokens),
        lambda ro: squares(ro).sum() / len(ro.tokens) ** 0.5,
        lambda ro: squares(ro).sum(-1).mean() * math.log(len(ro.tokens)),
        lambda ro: (squares(ro).sum(-1) * torch.rand(len(ro.tokens), dtype=torch.float64)).mean(),
    ],
)
def test_a_loss_without_a_limit_does_not_settle(loss):
    torch.manual_seed(0)
    assert not large_batches(loss, population_tree(2, 2, parts=4, eos=True)).settles


def test_a_limit_that_takes_further_doublings():
    def rare(ro):  # as if answers were a hundredth of what they are
        n = len(ro.tokens) / 100
        return (squares(ro).sum(-1)).mean() * n / (1 + n)

    made = population_tree(2, 2, parts=4, eos=True)
    few, more = large_batches(rare, made), large_batches(rare, made, further=6)
    limit = large_batches(lambda ro: squares(ro).sum(-1).mean(), made)
    assert (few.settles, more.settles) == (False, True)
    assert (more.gradient - limit.gradient).norm() < 1e-6 * limit.gradient.norm()
    assert more.value == pytest.approx(limit.value, rel=1e-6)


def test_copies_of_the_batch_are_whole_and_ready_to_read():
    made = population_tree(2, 2, parts=4, eos=True, off_policy=True)
    ro = population_rollout(made)
    assert ro.tokens.shape == (16, 2)
    assert len(made.which) == 16
    sizes = []
    for copies in (1, 3):
        batch_gradient(lambda ro: sizes.append(len(ro.tokens)) or total(ro).mean(), made, copies)
    assert sizes == [16, 48]


@pytest.mark.parametrize("off_policy", [False, True])
def test_what_a_loss_changes_in_place_is_not_seen_by_the_next(off_policy):
    def spoils(ro):
        value = (ro.logp - ro.ref_logp).sum(-1).square().mean()
        for f in dataclasses.fields(ro):
            if (x := getattr(ro, f.name)) is not None:
                x.detach().zero_()
        return value

    def reads_all(ro):
        return (squares(ro).sum(-1) * ro.rewards + ro.sampled_from.sum(-1) * ro.tokens.sum(-1)).mean()

    made, again = (population_tree(2, 2, parts=4, eos=True, off_policy=off_policy) for _ in range(2))
    wanted = large_batches(reads_all, again)
    assert large_batches(spoils, made).contributions > 0
    found = large_batches(reads_all, made)
    assert torch.equal(found.gradient, wanted.gradient)
    assert (found.value, found.contributions) == (wanted.value, wanted.contributions)


def test_what_reads_the_policy_by_its_tokens_alone_has_no_gradient_here():
    leaf = torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = large_batches(lambda ro: leaf * ro.rewards.mean(), population_tree(2, 2, parts=4))
    assert (found.gradient.abs().sum().item(), found.contributions) == (0.0, 0.0)


@pytest.mark.parametrize("sums", [False, True])
def test_a_world_tells_whether_another_one_needs_a_batch_of_twice_the_size(sums):
    sizes = []

    def loss(rollout):
        sizes.append(len(rollout.logp))
        total = ((rollout.logp - rollout.ref_logp) ** 2 * rollout.completion_mask).sum()
        return total if sums else total / len(rollout.logp)

    small, other = (population_tree(3, 2, parts=n, seed=n) for n in (4, 5))
    least = large_batches(loss, small)
    assert least.exact
    found = large_batches(loss, other, like=least)
    assert sizes == [16, 32, 25]
    alone = large_batches(loss, other)
    assert torch.allclose(found.gradient, alone.gradient)
    assert (found.sums, found.settles, found.value) == (sums, True, pytest.approx(alone.value))


def test_a_limit_with_terms_of_the_number_of_rows_or_without_a_gradient_tells_nothing_of_other_worlds():
    def leave_one_out(rollout):
        n = len(rollout.logp)
        others = (rollout.rewards.sum() - rollout.rewards) / (n - 1)
        return -((rollout.rewards - others + 1 / n) * rollout.logp.sum(-1)).mean()

    def silent(rollout):
        return (0 * rollout.logp).sum() if len(rollout.logp) < 50 else leave_one_out(rollout)

    small, other = (population_tree(3, 2, parts=n, seed=n, eos=True) for n in (4, 8))
    for loss in (leave_one_out, silent):
        found, alone = large_batches(loss, other, like=large_batches(loss, small)), large_batches(loss, other)
        assert torch.equal(found.gradient, alone.gradient)
