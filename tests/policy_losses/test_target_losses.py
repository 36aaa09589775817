"""Policy-gradient losses from KL estimators: sample by sample against loops, exact facts by enumeration."""

import math
from functools import partial

import pytest
import torch

from kl_companion import expected_gradient
from kl_companion.policy_losses import (
    PARTITIONS,
    apa_loss,
    decompose,
    f_policy_loss,
    reinforce_loss,
    rwr_loss,
    target_loss,
)
from kl_companion.rollout import Rollout
from tests.oracles import policy_losses as oracle
from tests.support.policy_groups import (
    BETA,
    CLOSE,
    CORRECTIONS,
    FULL,
    NEAR,
    OFF_POLICY,
    WORLDS,
    apart,
    at_target,
    by_loops,
    everything,
    expected,
    from_target,
    gradient_of,
    log_probs,
    log_z,
    reverse_kl,
    seen,
    stacked,
    to_target,
    value,
)

# --- sample by sample ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("estimator", ["k1", *FULL, "k3", "k5"])
def test_every_estimator_with_every_partition_is_the_loop(estimator, partition, size):
    if size == 1 and partition.endswith("_others"):
        return
    for problem in [*WORLDS[: 4 if size < 3 else 3], OFF_POLICY[0]]:
        for importance, mask in CORRECTIONS if problem.behavior_logits is not None else CORRECTIONS[:1]:
            options = {"partition": partition, "importance": importance, "mask": mask}
            got, _, _ = seen(partial(target_loss, estimator=estimator, beta=BETA, **options), problem, size)

            def weight(group, j, importance=importance, mask=mask):
                y = group[j]
                rho = math.exp(y["pi"] - y["mu"]) if importance else 1.0
                free = oracle.passes(y, group, *mask) if mask else 1.0
                return oracle.slope(estimator, y, oracle.log_z(partition, group, j)) * rho * free

            torch.testing.assert_close(got, by_loops(weight, problem, size), **CLOSE)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_named_losses_are_the_loops(size):
    for problem in [WORLDS[0], WORLDS[3], *OFF_POLICY]:
        got, _, _ = seen(partial(rwr_loss, beta=BETA), problem, size)
        wanted = by_loops(lambda g, j: -oracle.softmax_weight(g, j) * size, problem, size)
        torch.testing.assert_close(got, wanted, **CLOSE)
        got, _, _ = seen(partial(apa_loss, beta=BETA), problem, size)
        wanted = by_loops(lambda g, j: oracle.slope("k2", g[j], oracle.log_z("value", g, j)), problem, size)
        torch.testing.assert_close(got, wanted, **CLOSE)


@pytest.mark.parametrize("centering", ["none", "mean", "leave_one_out", "standardized"])
@pytest.mark.parametrize("penalty", ["k1", "k3"])
def test_reinforce_is_the_loop(penalty, centering):
    def cost(y):
        log_w = y["ref"] - y["pi"]
        return -log_w if penalty == "k1" else math.exp(log_w) - 1 - log_w

    def weight(group, j, weighted=False):
        values = [BETA * (y["r"] - cost(y)) for y in group]
        rho = math.exp(group[j]["pi"] - group[j]["mu"]) if weighted else 1.0
        return -oracle.centered(values, j, centering) * rho

    loss = partial(reinforce_loss, beta=BETA, penalty=penalty, centering=centering)
    for problem in (WORLDS[0], WORLDS[1]):  # of one token: K3 of a sequence is not the sum of its tokens' K3
        torch.testing.assert_close(seen(loss, problem, 2)[0], by_loops(weight, problem, 2), **NEAR)
    got = seen(partial(loss, importance="sequence"), OFF_POLICY[0], 3)[0]
    torch.testing.assert_close(got, by_loops(partial(weight, weighted=True), OFF_POLICY[0], 3), **NEAR)


def test_values_of_the_losses_by_hand():
    y = {"tokens": torch.zeros(2, 1, dtype=torch.long), "completion_mask": torch.ones(2, 1)}
    logp = torch.tensor([[-1.0], [-2.0]], dtype=torch.float64).requires_grad_()
    ref_logp = torch.tensor([[-1.5], [-1.0]], dtype=torch.float64)
    rollout = Rollout(**y, logp=logp, ref_logp=ref_logp, rewards=torch.tensor([1.0, 3.0]))
    # l = (1/2, -1); R / beta = (2, 6), mean 4; l - (R - V) / beta = (5/2, -3)
    assert apa_loss(rollout, beta=0.5).item() == pytest.approx((2.5**2 + 3**2) / 4, rel=1e-14)
    assert target_loss(rollout, "k4", beta=0.5, partition=4.0).item() == pytest.approx(-0.25, rel=1e-14)
    w = [math.exp(1.5), math.exp(7.0)]
    weighted = (w[0] * 1.0 + w[1] * 2.0) / sum(w)
    assert rwr_loss(rollout, beta=0.5).item() == pytest.approx(weighted, rel=1e-13)
    # R - beta l = (3/4, 7/2), apart by 11/4
    assert reinforce_loss(rollout, beta=0.5).item() == pytest.approx((-1.375 * 1 + 1.375 * 2) / 2, rel=1e-14)
    # with Z = 2 exp(3/2), w = (1/2, exp(11/2) / 2); Pearson is the mean of w (1/w - 1)^2
    v = [0.5, math.exp(5.5) / 2]
    pearson = f_policy_loss(rollout, "pearson", beta=0.5, partition=1.5 + math.log(2))
    assert pearson.item() == pytest.approx(sum(x * (1 / x - 1) ** 2 for x in v) / 2, rel=1e-12)


def test_one_batch_of_all_groups_is_the_enumeration_of_the_package():
    for problem in (WORLDS[0], OFF_POLICY[0]):
        for loss in (
            partial(target_loss, estimator="k5", partition="importance", beta=BETA),
            partial(rwr_loss, beta=BETA),
            partial(reinforce_loss, beta=BETA, centering="standardized"),
        ):
            wanted = expected_gradient(loss, problem, group_size=2)
            torch.testing.assert_close(expected(loss, problem, 2), wanted, **CLOSE)


# --- exact facts -----------------------------------------------------------------------------------------


def test_k1_differentiated_knows_no_reward():
    for problem in WORLDS:
        loss = partial(target_loss, estimator="k1", beta=BETA)
        other = problem._replace(rewards=problem.rewards.flip(0) * 5)
        assert torch.equal(seen(loss, problem, 2)[0], seen(loss, other, 2)[0])
        assert (seen(loss, problem, 2)[0] == 0.5).all()
        assert expected(loss, problem, 2).norm() < 1e-12


@pytest.mark.parametrize("partition", [*PARTITIONS, 0.3])
def test_k2_k3_plus_plus_and_k4_are_one_loss_sample_by_sample(partition):
    for problem in (WORLDS[0], WORLDS[3], OFF_POLICY[1]):
        loss = partial(target_loss, beta=BETA, partition=partition)
        k2, k3, k4 = (seen(partial(loss, estimator=e), problem, 2)[0] for e in FULL)
        torch.testing.assert_close(k3, k2, **CLOSE)
        torch.testing.assert_close(k4, k2, **CLOSE)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [*((e, to_target) for e in FULL), ("k3", from_target), ("k5", from_target)],
)
def test_with_the_exact_partition_it_is_a_divergence_from_the_target(estimator, wanted, size):
    for problem in WORLDS[: 4 if size < 3 else 3]:
        loss = partial(target_loss, estimator=estimator, beta=BETA, partition=log_z(problem))
        torch.testing.assert_close(expected(loss, problem, size), gradient_of(wanted, problem), **CLOSE)


def test_the_reverse_kl_to_the_target_is_the_regularized_reward():
    for problem in WORLDS:
        both = gradient_of(reverse_kl, problem) - gradient_of(value, problem)
        torch.testing.assert_close(gradient_of(to_target, problem), both, **CLOSE)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("partition", "on_kl", "on_reward"),
    [
        ("lower_bound", lambda n: 1 - 1 / n, lambda n: 1 - 1 / n),
        ("value", lambda n: 1.0, lambda n: 1 - 1 / n),
        ("lower_bound_others", lambda n: 1.0, lambda n: 1.0),
        ("value_others", lambda n: 1.0, lambda n: 1.0),
        ("importance_others", lambda n: 1.0, lambda n: 1.0),
    ],
)
def test_coefficients_of_k4_by_partition(partition, on_kl, on_reward, size):
    loss = partial(target_loss, estimator="k4", beta=BETA, partition=partition)
    for problem in WORLDS:
        kl, gain = gradient_of(reverse_kl, problem), gradient_of(value, problem)
        wanted = on_kl(size) * kl - on_reward(size) * gain
        torch.testing.assert_close(expected(loss, problem, size), wanted, **CLOSE)


@pytest.mark.parametrize("size", [2, 3])
def test_k4_with_the_importance_estimate_of_the_partition_leaves_the_span(size):
    fields = {"kl": stacked(partial(gradient_of, reverse_kl)), "value": stacked(partial(gradient_of, value))}
    loss = partial(target_loss, estimator="k4", beta=BETA)
    assert decompose(stacked(lambda p: expected(loss, p, size)), **fields).residual > 0.02
    fixed = partial(loss, partition="importance_others")
    found = decompose(stacked(lambda p: expected(fixed, p, size)), **fields)
    assert found.residual < 1e-12
    assert found.coefficients == pytest.approx({"kl": 1.0, "value": -1.0}, abs=1e-12)


def test_self_normalized_k5_is_biased_and_less_so_in_larger_groups():
    problem = WORLDS[0]
    wanted = gradient_of(from_target, problem)
    loss = partial(target_loss, estimator="k5", beta=BETA)
    bias = [apart(expected(loss, problem, n), wanted) for n in (2, 4, 6)]
    assert bias[0] > bias[1] > bias[2] > 0.01
    for n in (2, 4):
        others = partial(loss, partition="importance_others")
        assert apart(expected(others, problem, n), wanted) > 0.01  # E[1/Z] is not 1/E[Z]


def test_the_mean_kl_of_the_group_has_the_gradient_of_the_kl_and_enters_with_a_minus():
    for problem in WORLDS:
        value_only, bound = (
            partial(target_loss, estimator="k4", beta=BETA, partition=p) for p in ("value", "lower_bound")
        )
        difference = expected(bound, problem, 3) - expected(value_only, problem, 3)
        torch.testing.assert_close(difference, -gradient_of(reverse_kl, problem) / 3, **CLOSE)


def test_reinforce_with_the_kl_in_the_reward_is_k4_with_the_lower_bound_sample_by_sample():
    for problem in WORLDS:
        for centering, partition in (("mean", "lower_bound"), ("leave_one_out", "lower_bound_others")):
            theirs = seen(partial(reinforce_loss, beta=BETA, centering=centering), problem, 3)[0]
            ours = seen(partial(target_loss, estimator="k4", beta=BETA, partition=partition), problem, 3)[0]
            torch.testing.assert_close(theirs, BETA * ours, **CLOSE)
        free = partial(reinforce_loss, beta=BETA, centering="none")
        torch.testing.assert_close(
            expected(free, problem, 2), BETA * gradient_of(to_target, problem), **CLOSE
        )


def test_rwr_is_k5_without_its_baseline():
    for problem in WORLDS:
        rwr, _, _ = seen(partial(rwr_loss, beta=BETA), problem, 3)
        k5 = seen(partial(target_loss, estimator="k5", beta=BETA), problem, 3)[0]
        torch.testing.assert_close(rwr, k5 - 1 / 3, **CLOSE)
    for problem in OFF_POLICY:
        rwr, _, which = seen(partial(rwr_loss, beta=BETA), problem, 2)
        k5 = seen(partial(target_loss, estimator="k5", beta=BETA, importance="sequence"), problem, 2)[0]
        pi, _, mu = log_probs(problem)
        torch.testing.assert_close(rwr, k5 - (pi - mu).exp()[which] / 2, **CLOSE)


def test_apa_is_k2_at_the_value():
    rollout, _, _ = everything(WORLDS[1], 2)
    assert torch.equal(apa_loss(rollout, beta=BETA), target_loss(rollout, "k2", beta=BETA, partition="value"))
    assert apa_loss(rollout, beta=BETA, partition=0.3) != apa_loss(rollout, beta=BETA)


@pytest.mark.parametrize("estimator", [*FULL, "k5", "k3"])
def test_off_policy_weights_are_unbiased_and_masks_are_not(estimator):
    wanted = to_target if estimator in FULL else from_target
    loss = partial(target_loss, estimator=estimator, beta=BETA)
    for problem in OFF_POLICY:
        exact, target = partial(loss, partition=log_z(problem)), gradient_of(wanted, problem)
        weighted = partial(exact, importance="sequence")
        torch.testing.assert_close(expected(weighted, problem, 2), target, **CLOSE)
        assert apart(expected(exact, problem, 2), target) > 0.05
        assert apart(expected(partial(weighted, mask=(0.2, 0.28)), problem, 2), target) > 0.001
        if estimator in FULL:
            for partition in ("importance_others", "lower_bound_others", "value_others"):
                others = partial(loss, partition=partition, importance="sequence")
                torch.testing.assert_close(expected(others, problem, 2), target, **CLOSE)


@pytest.mark.parametrize("size", [2, 3])
def test_off_policy_weights_keep_the_factors_of_the_group(size):
    for problem in OFF_POLICY[:2]:
        kl, gain = gradient_of(reverse_kl, problem), gradient_of(value, problem)
        for partition, on_kl in (("lower_bound", 1 - 1 / size), ("value", 1.0)):
            loss = partial(target_loss, beta=BETA, partition=partition, importance="sequence")
            wanted = on_kl * kl - (1 - 1 / size) * gain
            torch.testing.assert_close(expected(loss, problem, size), wanted, **CLOSE)


@pytest.mark.parametrize("estimator", [*FULL, "k3", "k5"])
def test_the_target_is_a_fixed_point_whoever_samples(estimator):
    """Every weight vanishes at w = 1, so no correction is wanted there, if log Z is the same for all."""
    for problem in OFF_POLICY[::2]:  # a bandit, and a tree whose target is built below
        p = at_target(problem)
        for partition in (log_z(problem), "lower_bound", "lower_bound_others"):
            slope = seen(partial(target_loss, estimator=estimator, beta=BETA, partition=partition), p, 2)[0]
            assert slope.abs().max() < 1e-12
        assert seen(partial(reinforce_loss, beta=BETA), p, 2)[0].abs().max() < 1e-12
        assert expected(partial(apa_loss, beta=BETA), p, 2).norm() > 0.01
        assert expected(partial(rwr_loss, beta=BETA), p, 2).norm() > 0.001  # weights of two that sum to one
        stale = partial(target_loss, estimator=estimator, beta=BETA, partition="importance")
        assert expected(stale, p, 2).norm() > 0.001


def test_on_policy_weights_and_masks_change_nothing():
    for problem in WORLDS:
        plain = seen(partial(target_loss, beta=BETA), problem, 2)[0]
        both = partial(target_loss, beta=BETA, importance="sequence", mask=(0.0, 0.0))
        assert torch.equal(seen(both, problem, 2)[0], plain)
