"""In the form of EasyR1: a KL by name, averaged by name, scaled in place."""

from typing import Literal

import torch


def average_loss(
    values: torch.Tensor, mask: torch.Tensor, mode: Literal["token", "seq"], eps: float = 0.0
) -> torch.Tensor:
    if mode == "token":
        return (values * mask).sum() / (mask.sum() + eps)
    return ((values * mask).sum(-1) / (mask.sum(-1) + eps)).mean()


def compute_kl(
    log_probs: torch.FloatTensor,
    ref_log_probs: torch.FloatTensor,
    kl_penalty: Literal["kl", "abs", "mse", "low_var_kl", "full"] = "low_var_kl",
) -> torch.Tensor:
    log_probs, ref_log_probs = log_probs.float(), ref_log_probs.float()
    if kl_penalty == "kl":
        return log_probs - ref_log_probs
    if kl_penalty == "abs":
        return (log_probs - ref_log_probs).abs()
    if kl_penalty == "mse":
        return 0.5 * (log_probs - ref_log_probs).square()
    if kl_penalty == "low_var_kl":
        kl = (ref_log_probs - log_probs).clamp(-20.0, 20.0)
        return (kl.exp() - kl - 1).contiguous().clamp_(min=-10.0, max=10.0)
    raise NotImplementedError(kl_penalty)


def actor_kl_loss(log_probs, ref_log_probs, response_mask, kl_coef=0.01, loss_avg_mode="token"):
    kld = compute_kl(log_probs, ref_log_probs)
    kl_loss = average_loss(kld, response_mask, mode=loss_avg_mode)
    kl_loss *= kl_coef
    return kl_loss


def mse_of_each_answer(log_probs, ref_log_probs, response_mask):
    kld = compute_kl(log_probs, ref_log_probs, "mse")
    kld.mul_(response_mask)
    return (kld.sum(-1) / response_mask.sum(-1)).mean()
