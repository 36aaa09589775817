"""In the form of codes of CISPO and truncated importance sampling: the ratio is a weight, detached."""

import torch


def cispo_loss(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    epsilon_high: float = 5.0,
) -> torch.Tensor:
    weight = torch.clamp((log_prob - old_log_prob).exp(), max=epsilon_high).detach()
    per_token_loss = -weight * advantages.unsqueeze(1) * log_prob
    return (per_token_loss * response_mask).sum() / response_mask.sum()


def tis_loss(
    log_probs, old_log_probs, rollout_log_probs, ref_log_probs, advantages, loss_mask, tis_cap=2.0, beta=0.01
):
    tis = torch.exp(old_log_probs - rollout_log_probs).clamp(max=tis_cap)
    ratio = torch.exp(log_probs - old_log_probs)
    pg = torch.max(-ratio * advantages[:, None], -ratio.clamp(0.8, 1.28) * advantages[:, None])
    k2 = 0.5 * (log_probs - ref_log_probs) ** 2
    return ((tis * pg + beta * k2) * loss_mask).sum(-1).mean()


def detached_weight_k3(log_probs, old_log_probs, ref_log_probs, loss_mask):
    with torch.no_grad():
        rho = torch.exp(log_probs - old_log_probs)
    log_ratio = ref_log_probs - log_probs
    return (rho * (torch.exp(log_ratio) - log_ratio - 1) * loss_mask).sum() / loss_mask.sum()
