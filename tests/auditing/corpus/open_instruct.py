"""In the form of open-instruct: four estimators stacked, one chosen by its number."""

from dataclasses import dataclass

import torch


@dataclass
class ExperimentConfig:
    beta: float = 0.05
    kl_estimator: int = 2
    clip_lower: float = 0.2
    clip_higher: float = 0.272


def estimate_kl(ref_logprobs_diff: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    return torch.stack(
        [
            ref_logprobs_diff,
            ref_logprobs_diff**2 / 2,
            torch.expm1(-ref_logprobs_diff) + ref_logprobs_diff,
            ratio * ref_logprobs_diff,
        ]
    )


def masked_mean(values: torch.Tensor, mask: torch.Tensor, denominator: float | None = None) -> torch.Tensor:
    return (values * mask).sum() / (mask.sum() if denominator is None else denominator)


def compute_grpo_loss(
    new_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    response_masks: torch.Tensor,
    config: ExperimentConfig | None = None,
):
    config = config or ExperimentConfig()
    ratio = torch.exp(new_logprobs - old_logprobs)
    pg_losses = -advantages[:, None] * ratio
    pg_losses2 = -advantages[:, None] * torch.clamp(ratio, 1.0 - config.clip_lower, 1.0 + config.clip_higher)
    pg_loss = torch.max(pg_losses, pg_losses2)
    ref_logprobs_diff = (new_logprobs - ref_logprobs).clamp(-40.0, 40.0)
    kl = estimate_kl(ref_logprobs_diff, ratio)[config.kl_estimator]
    loss = masked_mean(pg_loss + config.beta * kl, response_masks)
    return loss, pg_loss.detach(), kl.detach()


def weighted_kl_loss(new_logprobs, old_logprobs, ref_logprobs, response_masks, beta=0.05, kl_estimator=3):
    diff = (new_logprobs - ref_logprobs).clamp(-40.0, 40.0)
    kl_all = estimate_kl(diff, torch.exp(new_logprobs - old_logprobs))
    return beta * masked_mean(kl_all[kl_estimator], response_masks)
