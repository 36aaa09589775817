"""What every KL term of the trainer minimizes."""

import pytest
from losses import GRPOLoss, k2_penalty, k3_penalty

from kl_companion.testing import minimizes

minimizes("token_reverse_kl")(k2_penalty)
minimizes("token_reverse_kl")(k3_penalty)  # fails: the gradient of k3 is that of the forward KL


@minimizes("token_reverse_kl", options={"beta": 0.1}, scale=1.0)
def grpo_with_k2(logps, old_logps, ref_logps, advantages, mask, beta):
    """The whole loss, with the KL term that passes."""
    return GRPOLoss(beta, kl="k2")(logps, old_logps, ref_logps, advantages, mask)


def test_the_default_of_the_trainer_is_known_to_be_a_forward_kl(kl_audit):
    found = kl_audit(GRPOLoss(), want="token_forward_kl", scale=1.0)
    assert found.matches == pytest.approx({"token_forward_kl": 0.04, "expected_reward": -1.0})


def test_the_default_of_the_trainer_minimizes_the_reverse_kl(kl_audit):
    kl_audit(GRPOLoss(), want="token_reverse_kl", scale=1.0)
