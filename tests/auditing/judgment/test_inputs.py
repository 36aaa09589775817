"""Rewards that a loss reads and that do not act on its gradient, at all or in large batches."""

import pytest
import torch

from kl_companion import audit


def k3(logp, ref_logp):
    return (ref_logp - logp).exp() - 1 - (ref_logp - logp)


def ones(logp, ref_logp, advantages, mask, beta=0.1):
    ratio = torch.exp(torch.zeros_like(logp))
    gain = torch.min(ratio, ratio.clamp(0.8, 1.2)) * advantages.unsqueeze(-1)
    return ((beta * k3(logp, ref_logp) - gain) * mask).sum() / mask.sum()


def detached(logp, ref_logp, old_logp, rewards, mask, beta=0.02):
    ratio = (logp - old_logp).exp().detach()
    centered = rewards - rewards.mean()
    return ((beta * k3(logp, ref_logp) - ratio * centered[:, None]) * mask).sum(-1).mean()


def times_nothing(logp, ref_logp, rewards, mask, beta=1.0, weight=0.0):
    return ((beta * k3(logp, ref_logp) - weight * logp * rewards[:, None]) * mask).sum(-1).mean()


def over_tokens_and_rows(logp, ref_logp, rewards, mask, beta=0.1):
    policy = -((logp * rewards[:, None] * mask).sum(1) / mask.sum()).mean()
    return policy + beta * ((k3(logp, ref_logp) * mask).sum(1) / mask.sum(1)).mean()


def over_rows_twice(logp, ref_logp, advantages, mask, beta=0.1):
    policy = -(logp * advantages[:, None] * mask).sum(-1).mean() / len(logp)
    return policy + beta * (k3(logp, ref_logp) * mask).sum(-1).mean()


def plain(logp, ref_logp, rewards, mask, beta=0.1):
    return ((beta * k3(logp, ref_logp) - logp * rewards[:, None]) * mask).sum(-1).mean()


def normalized(logp, ref_logp, rewards, mask, beta=0.1):
    advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    return ((beta * k3(logp, ref_logp) - logp * advantage[:, None]) * mask).sum() / mask.sum()


def leave_one_out(logp, ref_logp, rewards, mask):
    charged = rewards - 0.05 * (k3(logp.detach(), ref_logp) * mask).sum(-1)
    advantage = charged - (charged.sum() - charged) / (len(charged) - 1)
    return -((logp * mask).sum(-1) * advantage).mean()


def summed(logp, ref_logp, rewards, mask):
    return ((0.1 * k3(logp, ref_logp) - 1e-3 * logp * rewards[:, None]) * mask).sum()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (ones, "advantages have no effect on the gradient"),
        (detached, "rewards have no effect on the gradient"),
        (times_nothing, "rewards have no effect on the gradient"),
        (over_tokens_and_rows, "The effect of rewards vanishes as the batch grows"),
        (over_rows_twice, "The effect of advantages vanishes as the batch grows"),
        (plain, ""),
        (normalized, ""),
        (leave_one_out, ""),
        (summed, ""),
    ],
)
def test_what_rewards_do(loss, said):
    found = audit(loss, scale=1.0, off_policy=False)
    text = " ".join(str(found).split())
    assert said in text
    assert ("no effect on the gradient" in text) is ("no effect" in said)
    assert ("vanishes as the batch grows" in text) is ("vanishes" in said)
    assert found.to_dict()["dead_rewards"].startswith(said)
    assert bool(found.to_dict()["dead_rewards"]) is bool(said)


def test_a_loss_without_rewards_has_no_such_sentence():
    assert audit("k3", scale=1.0, off_policy=False).dead_rewards == ""
    assert audit(k3, scale=1.0, off_policy=False).dead_rewards == ""
