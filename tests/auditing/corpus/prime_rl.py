"""In the form of prime-rl: a dataclass of inputs, masks by drop conditions, sums."""

from dataclasses import dataclass

import torch


@dataclass
class LossInputs:
    trainer_logprobs: torch.Tensor
    inference_logprobs: torch.Tensor
    teacher_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    loss_mask: torch.Tensor


@dataclass
class LossConfig:
    dppo_mask_low: float = 0.2
    dppo_mask_high: float = 0.2
    kl_tau: float = 1e-3


def default_loss_fn(inputs: LossInputs, loss_config: LossConfig | None = None):
    loss_config = loss_config or LossConfig()
    log_ratio = inputs.trainer_logprobs - inputs.inference_logprobs
    ratio = torch.exp(log_ratio)
    moved = inputs.trainer_logprobs.exp() - inputs.inference_logprobs.exp()
    drop = torch.where(
        inputs.advantages > 0, moved > loss_config.dppo_mask_high, moved < -loss_config.dppo_mask_low
    )
    keep = inputs.loss_mask & ~drop
    pg_loss = keep * inputs.advantages * ratio
    kl_loss = inputs.loss_mask * log_ratio**2
    return (-pg_loss + loss_config.kl_tau * kl_loss).sum(), {"mismatch_kl": kl_loss.detach()}


def ref_kl_loss_fn(inputs: LossInputs, loss_config: LossConfig | None = None):
    loss_config = loss_config or LossConfig()
    log_ratio = inputs.trainer_logprobs - inputs.inference_logprobs
    moved = inputs.trainer_logprobs.exp() - inputs.inference_logprobs.exp()
    keep = inputs.loss_mask & ~(moved < -loss_config.dppo_mask_low)
    gain = (inputs.teacher_logprobs - inputs.trainer_logprobs).detach()
    loss = -(gain * torch.exp(log_ratio))[keep].sum()
    return loss + loss_config.kl_tau * (log_ratio[inputs.loss_mask] ** 2).sum()


def teacher_gain_loss(trainer_logprobs, inference_logprobs, teacher_logprobs, loss_mask):
    ratio = torch.exp(trainer_logprobs - inference_logprobs)
    gain = teacher_logprobs - trainer_logprobs.detach()
    return -(ratio * gain)[loss_mask].sum()
