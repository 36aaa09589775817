"""What all policy-gradient losses share: beta, what has a gradient, prompts and masks, refusals."""

from functools import partial

import pytest
import torch

from kl_companion.policy_losses import (
    PARTITIONS,
    apa_loss,
    f_policy_loss,
    log_partition,
    reinforce_loss,
    rwr_loss,
    target_loss,
)
from kl_companion.rollout import Rollout
from tests.support.policy_groups import batch

NAMED = [target_loss, apa_loss, rwr_loss, reinforce_loss, partial(f_policy_loss, divergence="pearson")]


def test_beta_is_one_by_default():
    for loss in NAMED:
        assert loss(batch()).item() == loss(batch(), beta=1.0).item() != loss(batch(), beta=2.0).item()
    for how in PARTITIONS:
        assert torch.equal(log_partition(batch(), how), log_partition(batch(), how, beta=1.0))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_gradients_reach_the_policy_alone(partition):
    rewards = torch.tensor([1.0, 0.0, 2.0, 5.0, 3.0], requires_grad=True)
    ref_logp = batch().ref_logp.clone().requires_grad_()
    attached = batch(rewards=rewards, ref_logp=ref_logp)
    assert not log_partition(attached, partition).requires_grad
    for loss in NAMED:
        options = {} if loss in (rwr_loss, reinforce_loss) else {"partition": partition}
        wanted = loss(attached, **options)
        found = torch.autograd.grad(wanted, [rewards, ref_logp], allow_unused=True)
        assert found == (None, None)


def test_large_rewards_do_not_overflow():
    rollout = batch(rewards=torch.tensor([1000.0, 0.0, 999.0, 2000.0, 1000.0]))
    for loss in (rwr_loss, apa_loss, reinforce_loss, partial(target_loss, estimator="k5")):
        (slope,) = torch.autograd.grad(loss(rollout, beta=0.1), rollout.logp)
        assert slope.isfinite().all()


def test_losses_ignore_what_stands_outside_the_mask_and_see_prompts_apart():
    for loss in (target_loss, apa_loss, reinforce_loss, partial(f_policy_loss, divergence="pearson")):
        rollout = batch()
        whole = loss(rollout)
        (slope,) = torch.autograd.grad(whole, rollout.logp)
        assert slope[[1, 3], [0, 1]].tolist() == [0.0, 0.0]
        parts = []
        for members in ([0, 2, 4], [1, 3]):
            own = {n: getattr(batch(), n)[members] for n in ("tokens", "completion_mask", "logp", "ref_logp")}
            parts.append(loss(Rollout(**own, rewards=batch().rewards[members])) * len(members) / 5)
        assert whole.item() == pytest.approx(sum(parts).item(), rel=1e-12)
    parts = []
    for members in ([0, 2, 4], [1, 3]):
        own = {n: getattr(batch(), n)[members] for n in ("tokens", "completion_mask", "logp", "ref_logp")}
        parts.append(rwr_loss(Rollout(**own, rewards=batch().rewards[members])) / 2)
    assert rwr_loss(batch()).item() == pytest.approx(sum(parts).item(), rel=1e-12)
