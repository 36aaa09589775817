"""In the form of tinker-cookbook: built-in losses of a dict whose ``logprobs`` are the sampler's; sums."""

import torch


def importance_sampling_loss(target_logprobs: torch.Tensor, loss_fn_inputs: dict[str, torch.Tensor]):
    prob_ratio = torch.exp(target_logprobs - loss_fn_inputs["logprobs"])
    return -(prob_ratio * loss_fn_inputs["advantages"] * loss_fn_inputs["mask"]).sum()


def incorporate_kl_penalty(sampled_logprobs, base_logprobs, advantages, mask, kl_penalty_coef):
    diffs = (sampled_logprobs - base_logprobs) * mask
    average = diffs.sum() / mask.sum()
    return advantages + kl_penalty_coef * mask * (average - diffs)


def kl_penalized_loss(
    logprobs: torch.Tensor,
    sampled_logprobs: torch.Tensor,
    base_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    kl_penalty_coef: float = 0.1,
) -> torch.Tensor:
    inputs = {"logprobs": sampled_logprobs, "mask": mask}
    inputs["advantages"] = incorporate_kl_penalty(
        sampled_logprobs, base_logprobs, advantages, mask, kl_penalty_coef
    )
    return importance_sampling_loss(logprobs, inputs)


def on_policy_distillation_loss(logprobs, sampled_logprobs, teacher_logprobs, mask, kl_penalty_coef=1.0):
    advantages = -kl_penalty_coef * (sampled_logprobs - teacher_logprobs) * mask
    return -(torch.exp(logprobs - sampled_logprobs) * advantages * mask).sum()
