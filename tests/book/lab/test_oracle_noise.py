"""Exact noise on an enumerated transformer, and what the oracle refuses."""

import itertools
import math

import pytest
import torch

from kl_book.lab.oracle import (
    enumerate_completions,
    expected_gradient,
    gradient_moments,
    leave_one_out_moments,
    objective_gradient,
    oracle_model,
    sample_gradients,
    samples_to_overtake,
)
from kl_book.lab.oracle_check import audited_loss, words
from kl_companion import kl_loss, leave_one_out, policy_gradient_loss
from kl_companion.auditing.reading.subject import as_loss
from kl_companion.losses import kl_reward
from kl_companion.tabular import prefix_tree
from tests.support.llm.by_hand import (
    LENGTH,
    VOCAB,
    flat_gradient,
    k3_reward_term,
    next_logp,
)


def test_noise_is_that_of_gradients_written_out_one_by_one(nine):
    loss = as_loss("k3", "reward")
    each = []
    for y in nine.problem.sequences.tolist():
        logp = [next_logp(nine.policy, y[:t])[y[t]] for t in range(2)]
        p = nine.problem.ref_logits.log_softmax(-1)
        ref = [p[nine.problem.rows[nine.problem.sequences.tolist().index(y), t], y[t]] for t in range(2)]
        each.append(flat_gradient(k3_reward_term(logp, ref, None, None), nine.policy))
    each, p = torch.stack(each), nine.probability
    mean = p @ each
    got = gradient_moments(nine, loss)
    assert got.noise == pytest.approx(math.sqrt((p @ (each - mean).square().sum(-1)).item()), rel=1e-10)
    torch.testing.assert_close(got.mean, mean, rtol=1e-9, atol=1e-11)


def score_loss(rollout):
    return policy_gradient_loss(rollout, torch.ones(len(rollout.tokens), dtype=rollout.logp.dtype))


@pytest.mark.parametrize("group", [2, 3])
def test_leave_one_out_is_that_of_all_groups(group, nine):
    costs = kl_reward(nine.rollout(nine.scores.detach()), "k1", beta=1.0)
    score = -sample_gradients(nine, score_loss) @ nine.jacobian
    p, mean, square = nine.probability, 0.0, 0.0
    for which in itertools.product(range(len(costs)), repeat=group):
        x = costs[list(which)]
        credit = [x[i] - sum(x[j] for j in range(group) if j != i) / (group - 1) for i in range(group)]
        g = sum(c * score[i] for c, i in zip(credit, which, strict=True)) / group
        weight = p[list(which)].prod()
        mean, square = mean + weight * g, square + weight * g.square().sum()
    got = leave_one_out_moments(nine, score_loss, costs, group)
    torch.testing.assert_close(got.mean, mean, rtol=1e-9, atol=1e-11)
    assert got.noise == pytest.approx(math.sqrt(group * (square - mean.square().sum()).item()), rel=1e-9)


def test_a_loss_of_groups_is_enumerated_over_groups(nine):
    def loss(rollout):
        costs = leave_one_out(kl_reward(rollout, "k1", beta=1.0), rollout.group_index)
        return policy_gradient_loss(rollout, -costs)

    got = expected_gradient(nine, loss, group_size=2)
    assert words(audited_loss(loss, group_size=2)) == "sequence_reverse_kl"
    expected = objective_gradient(nine, {"sequence_reverse_kl": 1.0})
    assert (got - expected).norm() < 1e-10 * expected.norm()
    with pytest.raises(ValueError, match="couples the completions"):
        sample_gradients(nine, lambda ro: kl_loss(ro, "k2", how="sum") ** 2)


def test_samples_to_overtake():
    assert samples_to_overtake(0.0, 5.0, 2.0, 3.0) == pytest.approx(4.0)  # 25 / n = 4 + 9 / n
    assert samples_to_overtake(0.0, 1.0, 2.0, 3.0) == 1.0
    assert math.isnan(samples_to_overtake(2.0, 1.0, 0.0, 3.0))
    assert samples_to_overtake(2.0, 1.0, 2.0, 3.0) == 1.0
    assert math.isnan(samples_to_overtake(2.0, 3.0, 2.0, 3.0))


# Bad input.


def test_bad_input_is_refused_with_what_was_wanted(models, on_policy):
    policy, reference, _ = models
    with pytest.raises(ValueError, match="reference has 3 tokens, expected 4"):
        enumerate_completions(policy, oracle_model(3), 2)
    with pytest.raises(ValueError, match=r"expected torch\.float64"):
        enumerate_completions(oracle_model(VOCAB).float(), reference, 2)
    with pytest.raises(ValueError, match="at most 100000"):
        enumerate_completions(policy, reference, 12)
    with pytest.raises(ValueError, match="in groups of 3"):
        expected_gradient(on_policy, as_loss("k2"), group_size=3)
    with pytest.raises(ValueError, match="expected one number"):
        expected_gradient(on_policy, lambda rollout: rollout.logp)
    with pytest.raises(ValueError, match="unknown objective"):
        objective_gradient(on_policy, {"sequence_reverse": 1.0})
    with pytest.raises(ValueError, match="twice the heads"):
        oracle_model(VOCAB, hidden=6)


def test_a_model_that_looks_ahead_is_refused(models):
    looks = oracle_model(VOCAB)
    forward = looks.forward

    def ahead(input_ids, **options):
        out = forward(input_ids=input_ids.flip(1), **options)
        out.logits = out.logits.flip(1)  # position t is read after what comes later, and not before
        return out

    looks.forward = ahead
    with pytest.raises(ValueError, match="expected a causal model"):
        enumerate_completions(looks, models[1], 2)


def test_the_table_of_logits_is_a_world_of_the_tabular_package(on_policy):
    table = prefix_tree(VOCAB, LENGTH)
    assert torch.equal(table.sequences, on_policy.problem.sequences)
    assert on_policy.problem.logits.shape == table.logits.shape
    assert on_policy.problem.behavior_logits is None
