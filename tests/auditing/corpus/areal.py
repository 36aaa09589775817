"""In the form of AReaL: the dict's ``logprobs`` are the sampler's, the argument's are the policy's."""

from typing import Any

import torch


def ppo_actor_loss_fn(
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    eps_clip: float,
    loss_mask: torch.Tensor,
    behav_imp_weight_cap: float | None = None,
):
    count = loss_mask.count_nonzero() or 1
    ratio = torch.where(loss_mask, torch.exp(logprobs - proximal_logprobs), 0)
    clipped = torch.clamp(ratio, 1.0 - eps_clip, 1.0 + eps_clip)
    pg_loss = torch.max(-advantages * ratio, -advantages * clipped)
    behav_imp_weight = torch.where(loss_mask, (proximal_logprobs - old_logprobs).exp(), 0)
    if behav_imp_weight_cap is not None:
        behav_mask = (behav_imp_weight <= behav_imp_weight_cap).logical_and(loss_mask)
        behav_imp_weight = torch.where(behav_mask, behav_imp_weight, 0.0)
    pg_loss = torch.where(loss_mask, pg_loss * behav_imp_weight, 0).sum() / count
    return pg_loss, {"loss": pg_loss.detach(), "importance_weight": ratio.detach()}


def grpo_loss_fn(
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    input_data: dict[str, Any],
    eps_clip: float = 0.2,
    rl_loss_weight: float = 1.0,
    distill_loss_weight: float = 0.005,
) -> torch.Tensor:
    old_logp, loss_mask = input_data["logprobs"], input_data["loss_mask"].bool()
    loss, stat = ppo_actor_loss_fn(
        logprobs=logprobs,
        proximal_logprobs=input_data["prox_logp"],
        old_logprobs=old_logp,
        advantages=input_data["advantages"],
        eps_clip=eps_clip,
        loss_mask=loss_mask,
        behav_imp_weight_cap=5.0,
    )
    stat["entropy"] = entropy.detach().float()
    if (teacher_logp := input_data.get("teacher_logp")) is not None:
        rkl = torch.where(loss_mask, logprobs - teacher_logp, 0).sum() / loss_mask.count_nonzero()
        loss = rl_loss_weight * loss + distill_loss_weight * rkl
    return loss


def joint_distillation_term(logprobs, teacher_logp, loss_mask):
    rkl_penalty = logprobs - teacher_logp
    return rkl_penalty.masked_fill(~loss_mask.bool(), 0.0).sum() / loss_mask.sum()


def pure_distillation_loss(logprobs, old_logp, teacher_logp, loss_mask):
    rkl_reward = (teacher_logp - logprobs).detach()
    ratio = torch.exp(logprobs - old_logp)
    return -(ratio * rkl_reward * loss_mask).sum() / loss_mask.sum()
