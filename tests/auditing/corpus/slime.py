"""In the form of slime: lists of one tensor per answer, and a KL by name with an importance ratio."""

from argparse import Namespace

import torch


def compute_approx_kl(
    log_probs: torch.Tensor,
    log_probs_base: torch.Tensor,
    kl_loss_type: str = "k2",
    importance_ratio: torch.Tensor | None = None,
) -> torch.Tensor:
    log_ratio = log_probs.float() - log_probs_base.float()
    if kl_loss_type == "k1":
        kl = log_ratio
    elif kl_loss_type == "k2":
        kl = log_ratio**2 / 2.0
    elif kl_loss_type in ("k3", "low_var_kl"):
        kl = (-log_ratio).exp() - 1 + log_ratio
    else:
        raise ValueError(f"Unknown kl_loss_type: {kl_loss_type}")
    if importance_ratio is not None:
        kl = importance_ratio * kl
    return torch.clamp(kl, min=-10, max=10) if kl_loss_type == "low_var_kl" else kl


def sum_of_sample_mean(x: list[torch.Tensor], loss_masks: list[torch.Tensor]) -> torch.Tensor:
    return sum((v * m).sum() / torch.clamp_min(m.sum(), 1) for v, m in zip(x, loss_masks, strict=True))


def kl_loss_of_lists(
    log_probs: list[torch.Tensor],
    ref_log_probs: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    kl_loss_type: str = "k1",
) -> torch.Tensor:
    kls = [compute_approx_kl(a, b, kl_loss_type) for a, b in zip(log_probs, ref_log_probs, strict=True)]
    return sum_of_sample_mean(kls, loss_masks)


def unbiased_kl_loss(args: Namespace, log_probs, old_log_probs, ref_log_probs, loss_mask):
    ratio = torch.exp(log_probs - old_log_probs) if args.use_unbiased_kl else None
    kl = compute_approx_kl(log_probs, ref_log_probs, args.kl_loss_type, importance_ratio=ratio)
    return args.kl_loss_coef * (kl * loss_mask).sum(-1).mean()


def weighted_k2_loss(log_probs, old_log_probs, ref_log_probs, loss_mask):
    kl = compute_approx_kl(log_probs, ref_log_probs, "k2", torch.exp(log_probs - old_log_probs))
    return (kl * loss_mask).sum(-1).mean()
