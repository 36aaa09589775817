"""In the form of SkyRL: K3 in the loss averaged per answer, or the same estimator in the reward."""

import torch


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor | None, dim: int | None = None) -> torch.Tensor:
    if mask is None:
        return tensor.mean(dim)
    return (tensor * mask).sum(dim) / mask.sum(dim).clamp(min=1.0)


@torch.no_grad()
def approx_kl_in_reward(log_probs, log_probs_base, loss_mask=None, kl_estimator_type="k3"):
    return compute_approx_kl(log_probs, log_probs_base, loss_mask, kl_estimator_type)


def compute_approx_kl(
    log_probs: torch.Tensor,
    log_probs_base: torch.Tensor,
    loss_mask: torch.Tensor | None = None,
    kl_estimator_type: str = "k3",
) -> torch.Tensor:
    kld = log_probs - log_probs_base
    if kl_estimator_type == "k2":
        kld = 0.5 * kld.square()
    if kl_estimator_type == "k3":
        kl = torch.clamp(log_probs_base - log_probs, min=-20, max=20)
        kld = torch.clamp(torch.exp(kl) - kl - 1, min=-10, max=10)
    return kld if loss_mask is None else kld * loss_mask


def kl_loss(action_log_probs, base_action_log_probs, loss_mask, kl_loss_coef=0.001):
    kl = compute_approx_kl(action_log_probs, base_action_log_probs, loss_mask)
    return kl_loss_coef * masked_mean(kl, loss_mask, dim=-1).mean()


def reinforce_with_k3_reward(
    action_log_probs, old_action_log_probs, base_action_log_probs, rewards, loss_mask, kl_coef=0.1
):
    kl = approx_kl_in_reward(old_action_log_probs, base_action_log_probs, loss_mask)
    penalties = -kl_coef * kl
    returns = penalties.flip(-1).cumsum(-1).flip(-1) + rewards[:, None]
    return -(returns * action_log_probs * loss_mask).sum(-1).mean()


def reinforce_with_k2_reward(action_log_probs, base_action_log_probs, loss_mask, kl_coef=0.1):
    kl = approx_kl_in_reward(action_log_probs, base_action_log_probs, loss_mask, "k2").sum(-1)
    return kl_coef * (kl * (action_log_probs * loss_mask).sum(-1)).mean()
