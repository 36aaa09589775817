"""Policy-gradient losses from KL estimators: sample by sample against loops, exact facts by enumeration."""

import math
from functools import partial

import pytest
import torch

from kl_companion import expected_gradient
from kl_companion.policy_losses import (
    PARTITIONS,
    apa_loss,
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
    by_loops,
    everything,
    expected,
    from_target,
    gradient_of,
    log_z,
    seen,
    to_target,
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


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [*((e, to_target) for e in FULL), ("k3", from_target), ("k5", from_target)],
)
def test_with_the_exact_partition_it_is_a_divergence_from_the_target(estimator, wanted, size):
    for problem in WORLDS[: 4 if size < 3 else 3]:
        loss = partial(target_loss, estimator=estimator, beta=BETA, partition=log_z(problem))
        torch.testing.assert_close(expected(loss, problem, size), gradient_of(wanted, problem), **CLOSE)


def test_apa_is_k2_at_the_value():
    rollout, _, _ = everything(WORLDS[1], 2)
    assert torch.equal(apa_loss(rollout, beta=BETA), target_loss(rollout, "k2", beta=BETA, partition="value"))
    assert apa_loss(rollout, beta=BETA, partition=0.3) != apa_loss(rollout, beta=BETA)
