"""In the form of OpenRLHF: casts to float32, modules, experiences."""

from dataclasses import dataclass

import torch
import torch.nn as nn


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor | None, dim: int | None = None) -> torch.Tensor:
    if mask is None:
        return tensor.mean(dim=dim)
    if dim is None:
        return (tensor * mask).sum() / mask.sum()
    return (tensor * mask).sum(dim=dim) / mask.sum(dim=dim)


def compute_approx_kl(
    log_probs: torch.Tensor, log_probs_base: torch.Tensor, kl_estimator: str = "k1"
) -> torch.Tensor:
    log_ratio = log_probs.float() - log_probs_base.float()
    if kl_estimator == "k2":
        log_ratio = log_ratio**2 / 2.0
    if kl_estimator == "k3":
        log_ratio = -log_ratio
        log_ratio = log_ratio.exp() - 1 - log_ratio
    return log_ratio.clamp(min=-10, max=10)


def compute_unbiased_kl(
    log_probs: torch.Tensor, log_probs_base: torch.Tensor, log_probs_old: torch.Tensor
) -> torch.Tensor:
    log_ratio = log_probs.float() - log_probs_base.float()
    weight = (log_probs.float() - log_probs_old.float()).exp().clamp(max=10.0).detach()
    half_square = weight * log_ratio.pow(2) / 2
    return log_ratio.detach().clamp(-10, 10) + half_square - half_square.detach()


class PolicyLoss(nn.Module):
    def __init__(
        self, clip_eps_low: float = 0.2, clip_eps_high: float = 0.2, dual_clip: float | None = None
    ) -> None:
        super().__init__()
        self.clip_eps_low = clip_eps_low
        self.clip_eps_high = clip_eps_high
        self.dual_clip = dual_clip

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor | None = None,
    ):
        ratio = (log_probs - old_log_probs).exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages
        loss = -torch.min(surr1, surr2)
        if self.dual_clip is not None:
            capped = torch.max(torch.min(surr1, surr2), self.dual_clip * advantages)
            loss = -torch.where(advantages < 0, capped, torch.min(surr1, surr2))
        clip_ratio = masked_mean(torch.lt(surr2, surr1).float(), action_mask)
        return masked_mean(loss, action_mask), clip_ratio.detach()


@dataclass
class Experience:
    action_log_probs: torch.Tensor
    base_action_log_probs: torch.Tensor
    action_mask: torch.BoolTensor


def kl_loss_of_experience(experience: Experience, init_kl_coef: float = 0.01) -> torch.Tensor:
    kl = compute_approx_kl(experience.action_log_probs, experience.base_action_log_probs, "k2")
    return init_kl_coef * masked_mean(kl, experience.action_mask, dim=-1).mean()


def reinforce_plus_plus_loss(
    action_log_probs, old_action_log_probs, base_action_log_probs, rewards, action_mask, kl_coef=0.01
):
    with torch.no_grad():
        kl = (old_action_log_probs - base_action_log_probs) * action_mask
        reward = -kl_coef * kl
        last = action_mask.long().cumsum(-1).argmax(-1, keepdim=True)
        reward.scatter_add_(1, last, rewards.unsqueeze(-1))
        returns = reward.flip(-1).cumsum(-1).flip(-1) * action_mask
        mean = masked_mean(returns, action_mask)
        var = masked_mean((returns - mean) ** 2, action_mask)
        advantages = (returns - mean) * var.clamp(min=1e-8).rsqrt()
    ratio = (action_log_probs - old_action_log_probs).exp()
    surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -masked_mean(surrogate, action_mask)
