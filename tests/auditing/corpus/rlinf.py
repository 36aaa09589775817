"""In the form of RLinf: one back end calls the penalty with the arguments exchanged."""

from collections.abc import Callable

import torch


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis=None) -> torch.Tensor:
    return (values * mask).sum(axis=axis) / mask.sum(axis=axis)


def kl_penalty(logprob: torch.Tensor, ref_logprob: torch.Tensor, kl_penalty: str = "low_var_kl"):
    if kl_penalty == "kl":
        return logprob - ref_logprob
    if kl_penalty == "mse":
        return 0.5 * (logprob - ref_logprob).square()
    kl = ref_logprob - logprob
    return torch.clamp((torch.exp(kl) - kl - 1).contiguous(), min=-10, max=10)


def compute_ppo_actor_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    clip_ratio_low: float,
    clip_ratio_high: float,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor | None = None,
    c_clip: float | None = None,
    loss_agg_func: Callable[..., torch.Tensor] = masked_mean,
    **kwargs,
):
    if loss_mask is None:
        loss_mask = torch.ones_like(logprobs).bool()
    loss_mask_count = loss_mask.count_nonzero() or 1
    ratio = torch.where(loss_mask, torch.exp(logprobs - old_logprobs), 0)
    clipped_ratio = torch.clamp(ratio, 1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    policy_loss1 = -advantages * ratio
    policy_loss2 = -advantages * clipped_ratio
    policy_loss = torch.max(policy_loss1, policy_loss2)
    if c_clip is not None:
        policy_loss = torch.min(policy_loss, torch.sign(advantages) * c_clip * advantages)
    clip_mask = (policy_loss1.detach() < policy_loss2.detach()).logical_and_(loss_mask)
    loss = loss_agg_func(policy_loss, loss_mask)
    return loss, {"actor/clip_fraction": clip_mask.count_nonzero() / loss_mask_count}


def fsdp_kl_loss(ref_logprobs, logprobs, loss_mask, kl_beta=0.001, kl_penalty_type="low_var_kl"):
    kl_loss = kl_penalty(ref_logprobs, logprobs, kl_penalty_type)
    return kl_beta * masked_mean(kl_loss, loss_mask)


def megatron_kl_loss(ref_logprobs, logprobs, loss_mask, kl_beta=0.001, kl_penalty_type="low_var_kl"):
    kl_loss = kl_penalty(logprobs, ref_logprobs, kl_penalty_type)
    return kl_beta * masked_mean(kl_loss, loss_mask)
