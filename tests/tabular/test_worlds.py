"""Enumerated worlds: what is listed, who samples, stacks of them and policies cut to their head."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.tabular import bandit, prefix_tree, stack, truncate
from tests.oracles import sampling, worlds
from tests.oracles.sampling import as_world
from tests.support.worlds import WORLDS, sampler

# the worlds


@pytest.mark.parametrize("name", WORLDS)
def test_probabilities_sum_to_one_and_are_those_of_the_sampler(name):
    problem = WORLDS[name]
    got = problem.probabilities()
    assert got.sum().item() == pytest.approx(1, abs=1e-14)
    assert not got.requires_grad
    world = as_world(problem)
    wanted = [sampling.chance(world, sampler(problem, problem.logits), leaf) for leaf in world["leaves"]]
    assert got.tolist() == pytest.approx(wanted, rel=1e-13)


def test_probabilities_of_another_policy():
    problem, moved = WORLDS["tree"], WORLDS["tree"].logits.flip(0)
    world = as_world(problem)
    wanted = [sampling.chance(world, moved, leaf) for leaf in world["leaves"]]
    assert problem.probabilities(moved).tolist() == pytest.approx(wanted, rel=1e-13)
    fixed = WORLDS["off_policy"]
    assert torch.equal(fixed.probabilities(fixed.logits.flip(0)), fixed.probabilities())
    assert not problem.probabilities(moved.clone().requires_grad_()).requires_grad


def test_a_tree_lists_every_sequence_once():
    assert as_world(prefix_tree(2, 2))["leaves"] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    short = as_world(prefix_tree(2, 3, eos=True))
    assert sorted(short["leaves"]) == [(0,), (1, 0), (1, 1, 0), (1, 1, 1)]
    assert set(short["row"]) == {(), (1,), (1, 1)}
    assert len(WORLDS["eos"].sequences) == 1 + 2 * 3
    assert len(WORLDS["tree"].logits) == 1 + 3
    padding = prefix_tree(2, 3, eos=True)
    assert padding.sequences[padding.completion_mask == 0].eq(0).all()


def test_a_bandit_is_one_row():
    problem = bandit(7, seed=0, scale=0.0)
    assert problem.logits.shape == (1, 7)
    assert torch.equal(problem.logits, problem.ref_logits)
    assert problem.behavior_logits is None
    assert as_world(problem)["leaves"] == [(i,) for i in range(7)]
    double = bandit(7, seed=0, scale=2.0).logits - problem.logits
    torch.testing.assert_close(double, 2 * (bandit(7, seed=0).logits - problem.logits))
    assert bandit(seed=0).logits.shape == (1, 100)


def test_worlds_are_float64_and_their_seed_decides():
    for make in (bandit, prefix_tree):
        a, b, c = make(3, seed=1), make(3, seed=1), make(3, seed=2)
        assert torch.equal(a.logits, b.logits)
        assert not torch.equal(a.logits, c.logits)
        assert {x.dtype for x in (a.logits, a.ref_logits, a.rewards)} == {torch.float64}
        off = make(3, seed=1, off_policy=True)
        assert torch.equal(off.logits, a.logits)
        assert torch.equal(off.rewards, a.rewards)
        assert not torch.equal(off.behavior_logits, off.logits)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0.25, 1.0, 4.0]), st.booleans(), st.booleans())
def test_log_ratios_of_a_tree_are_bounded(seed, scale, eos, off_policy):
    problem = prefix_tree(3, 2, seed=seed, scale=scale, eos=eos, off_policy=off_policy)
    p, q = problem.logits.log_softmax(-1), problem.ref_logits.log_softmax(-1)
    assert (p - q).abs().max() <= 2 * scale
    assert (problem.logits - problem.ref_logits).abs().max() <= scale
    if off_policy:
        assert (problem.behavior_logits - problem.logits).abs().max() <= scale / 2
    assert problem.probabilities().sum().item() == pytest.approx(1, abs=1e-13)


def test_a_rollout_of_chosen_sequences():
    problem = WORLDS["off_policy"]
    which = torch.tensor([4, 0, 4])
    rollout = problem.rollout(problem.logits, which)
    assert torch.equal(rollout.tokens, problem.sequences[which])
    assert torch.equal(rollout.rewards, problem.rewards[which])
    assert torch.equal(rollout.completion_mask, problem.completion_mask[which])
    table = worlds.log_probs(problem.behavior_logits)
    assert rollout.behavior_logp[0, 0].item() == pytest.approx(table[0, problem.sequences[4, 0]].item())
    assert problem.rollout(problem.logits).tokens.shape == problem.sequences.shape
    same = WORLDS["tree"]  # on-policy, what samples is the policy that scores
    leaf = same.logits.clone().requires_grad_()
    rollout = same.rollout(leaf)
    assert torch.equal(rollout.behavior_logp, rollout.logp)
    assert rollout.logp.requires_grad
    assert not rollout.behavior_logp.requires_grad


# stacks


def test_a_stack_lists_the_sequences_once_and_the_logits_of_every_world():
    for off_policy in (False, True):
        problems = [prefix_tree(3, 2, seed=s, eos=True, off_policy=off_policy) for s in range(4)]
        many = stack(problems)
        assert many.logits.shape == (4, 3, 3)
        assert many.rewards.shape == (4, 7)
        assert (many.behavior_logits is None) is not off_policy
        for w, p in enumerate(problems):
            names = ["logits", "ref_logits", "rewards", *(["behavior_logits"] if off_policy else [])]
            for name in names:
                assert torch.equal(getattr(many, name)[w], getattr(p, name))
            assert torch.equal(many.sampled_from[w], p.sampled_from)
            assert torch.equal(many.probabilities()[w], p.probabilities())
            assert torch.equal(many.token_logp(many.ref_logits)[w], p.token_logp(p.ref_logits))
        for name in ("sequences", "completion_mask", "rows"):
            assert torch.equal(getattr(many, name), getattr(problems[0], name))


def test_the_rollout_of_a_stack_lists_one_world_after_the_other():
    problems = [prefix_tree(2, 2, seed=s, eos=True, off_policy=True) for s in range(3)]
    many = stack(problems)
    both = many.rollout(many.logits)
    single = [p.rollout(p.logits) for p in problems]
    for name in ("tokens", "completion_mask", "logp", "ref_logp", "behavior_logp", "rewards", "logits"):
        wanted = torch.cat([getattr(r, name) for r in single])
        torch.testing.assert_close(getattr(both, name), wanted, rtol=1e-14, atol=0)


def test_a_stack_of_one_and_one_of_two():
    tree, other = prefix_tree(2, 2, seed=1), prefix_tree(2, 2, seed=2)
    assert torch.equal(stack([tree]).logits, tree.logits.unsqueeze(0))
    assert torch.equal(stack((tree, other)).rewards, torch.stack([tree.rewards, other.rewards]))


# policies cut to their head


def kept(logits):
    return [[i for i, x in enumerate(row) if x > -math.inf] for row in logits.tolist()]


def test_the_head_by_hand():
    table = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).log()
    problem = bandit(4)._replace(logits=table + 3.0)  # logits are not normalized
    assert kept(truncate(problem, top_k=1).behavior_logits) == [[0], [3]]
    assert kept(truncate(problem, top_k=3).behavior_logits) == [[0, 1, 2], [1, 2, 3]]
    assert kept(truncate(problem, top_p=0.45).behavior_logits) == [[0], [2, 3]]
    assert kept(truncate(problem, top_p=0.75).behavior_logits) == [[0, 1], [1, 2, 3]]
    assert kept(truncate(problem, top_p=0.85).behavior_logits) == [[0, 1, 2], [1, 2, 3]]
    assert kept(truncate(problem, top_p=1e-9).behavior_logits) == [[0], [3]]  # at least one token
    cut = truncate(problem, top_p=0.75).behavior_logits.softmax(-1)
    wanted = torch.tensor([[5 / 8, 3 / 8, 0, 0], [0, 2 / 9, 3 / 9, 4 / 9]], dtype=torch.float64)
    torch.testing.assert_close(cut, wanted, rtol=1e-13, atol=0)


def test_of_equal_tokens_the_first_are_kept():
    flat = bandit(4)._replace(logits=torch.zeros(1, 4, dtype=torch.float64))
    assert kept(truncate(flat, top_k=2).behavior_logits) == [[0, 1]]
    assert kept(truncate(flat, top_p=0.6).behavior_logits) == [[0, 1, 2]]
    assert kept(truncate(flat, top_p=0.5).behavior_logits) == [[0, 1]]


def test_a_head_of_everything_is_the_policy():
    problem = prefix_tree(3, 2, seed=1, off_policy=True)
    for whole in (truncate(problem, top_k=3), truncate(problem, top_p=1.0)):
        assert torch.equal(whole.behavior_logits, problem.logits)
        assert torch.equal(whole.logits, problem.logits)
        assert not torch.equal(whole.behavior_logits, problem.behavior_logits)


def test_sequences_outside_the_head_have_probability_zero():
    problem = truncate(prefix_tree(3, 2, seed=3, eos=True), top_k=2)
    world, alive = as_world(problem), kept(problem.behavior_logits)
    chances = problem.probabilities().tolist()
    assert sum(chances) == pytest.approx(1, abs=1e-14)
    for leaf, chance in zip(world["leaves"], chances, strict=True):
        inside = all(leaf[i] in alive[world["row"][leaf[:i]]] for i in range(len(leaf)))
        assert (chance > 0) is inside
    rollout = problem.rollout(problem.logits)  # they are listed all the same, with a finite log-prob
    assert rollout.behavior_logp.isfinite().all()
    assert rollout.behavior_logp.min() < -1e29


def test_a_stack_is_cut_world_by_world():
    problems = [bandit(5, seed=s) for s in range(3)]
    many = truncate(stack(problems), top_p=0.6)
    for w, p in enumerate(problems):
        assert torch.equal(many.behavior_logits[w], truncate(p, top_p=0.6).behavior_logits)
