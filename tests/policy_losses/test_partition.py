"""log Z of a group: by hand, given, and in expectation."""

import pytest
import torch

from kl_companion.policy_losses import PARTITIONS, log_partition
from tests.oracles import policy_losses as oracle
from tests.support.policy_groups import BETA, OFF_POLICY, WORLDS, batch, everything, log_z


@pytest.mark.parametrize("partition", PARTITIONS)
def test_log_partition_of_groups_in_any_order(partition):
    got = log_partition(batch(), partition, beta=2.0)
    log_ratio, r = [-0.5, -1.0, 1.0, 0.6, -1.1], [0.5, 0.0, 1.0, 2.5, 1.5]
    for members in ([0, 2, 4], [1, 3]):
        group = [{"r": r[i], "ref": 0.0, "pi": log_ratio[i], "mu": log_ratio[i]} for i in members]
        for j, i in enumerate(members):
            assert got[i].item() == pytest.approx(oracle.log_z(partition, group, j), rel=1e-13)
    assert got.dtype == torch.float64
    assert not got.requires_grad


def test_log_partition_that_is_given():
    exact = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.equal(log_partition(batch(), exact), exact.detach())
    assert not log_partition(batch(), exact).requires_grad
    assert log_partition(batch(), 3).tolist() == [3.0] * 5
    assert log_partition(batch(), torch.tensor(3.0)).tolist() == [3.0] * 5


def test_the_importance_estimate_of_the_partition_is_unbiased_and_above_the_bound():
    for problem in [*WORLDS, *OFF_POLICY]:
        for size in (1, 2):
            rollout, chance, which = everything(problem, size)
            z = log_partition(rollout, "importance", beta=BETA).reshape(which.shape)
            assert (chance * z[:, 0].exp()).sum().item() == pytest.approx(
                log_z(problem).exp().item(), rel=1e-12
            )
            if problem.behavior_logits is None:
                bound = log_partition(rollout, "lower_bound", beta=BETA).reshape(which.shape)
                assert (bound <= z + 1e-12).all()
                assert (chance * bound[:, 0]).sum() < log_z(problem)
