"""PPO's clip as a mask: at its edges, and its gradient."""

import pytest
import torch

from kl_companion.policy_losses import ppo_mask


def test_ppo_mask_by_cases_and_at_its_edges():
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    ratio = torch.tensor([1.25, 1.26, 0.1, 0.5, 0.49, 9.0, 9.0, 0.1], dtype=torch.float64)
    wanted = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert ppo_mask(advantages, ratio, 0.5, 0.25).tolist() == wanted
    assert not ppo_mask(advantages, ratio.requires_grad_(), 0.5, 0.25).requires_grad


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ppo_mask_times_the_ratio_has_the_gradient_of_ppo_clip(sign):
    for log_rho in (-1.0, -0.1, 0.0, 0.1, 1.0):
        x = torch.tensor([log_rho], dtype=torch.float64, requires_grad=True)
        a = torch.tensor([sign], dtype=torch.float64)
        clipped = torch.minimum(a * x.exp(), a * x.exp().clamp(1 - 0.2, 1 + 0.28)).sum()
        (wanted,) = torch.autograd.grad(clipped, x)
        ours = (x.exp().detach() * ppo_mask(a, x.exp(), 0.2, 0.28) * a * x).sum()
        assert torch.autograd.grad(ours, x)[0].item() == pytest.approx(wanted.item(), abs=1e-15)
