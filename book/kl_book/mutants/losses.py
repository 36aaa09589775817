"""Five policy losses in the form of frameworks, under the parameter names of polgrad.

Each is what a published formula says, so that its unchanged form conforms to polgrad's; `FORMULAS` is how
polgrad writes it down. They differ in what a slip can touch: the ratio of a token or of an answer, one clip
or two, the estimator of the KL, the reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def grpo_k3(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
) -> torch.Tensor:
    """TRL's GRPO: K3 beside the clipped surrogate, a mean over all tokens."""
    ratio = torch.exp(logprobs - old_logprobs)
    clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
    surrogate = -torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
    log_ratio = ref_logprobs - logprobs
    kl = torch.exp(log_ratio) - log_ratio - 1
    return ((surrogate + 0.04 * kl) * response_mask).sum() / response_mask.sum()


def dual_clip_k3(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
) -> torch.Tensor:
    """verl's PPO: a second clip for negative advantages, exponents within 20, answers weighted alike."""
    each = advantages[:, None]
    ratio = torch.exp(torch.clamp(logprobs - old_logprobs, -20.0, 20.0))
    once = torch.max(-each * ratio, -each * torch.clamp(ratio, 1 - 0.2, 1 + 0.28))
    twice = torch.where(each < 0, torch.min(once, -each * 3.0), once)
    log_ratio = torch.clamp(ref_logprobs - logprobs, -20.0, 20.0)
    kl = torch.exp(log_ratio) - log_ratio - 1
    per_answer = ((twice + 0.001 * kl) * response_mask).sum(-1)
    return (per_answer / response_mask.sum(-1)).mean()


def clip_k2(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
) -> torch.Tensor:
    """OpenRLHF's PPO: K2, and a sum over the tokens of an answer by a fixed length."""
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.exp()
    surr1 = ratio * advantages[:, None]
    surr2 = ratio.clamp(1 - 0.2, 1 + 0.2) * advantages[:, None]
    kl = (logprobs - ref_logprobs) ** 2 / 2.0
    loss = -torch.min(surr1, surr2) + 0.01 * kl
    return ((loss * response_mask).sum(-1) / 8).mean()


def gspo(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
) -> torch.Tensor:
    """ms-swift's GSPO: one ratio for each answer, K3 beside it."""
    lengths = response_mask.sum(-1, keepdim=True)
    log_ratio = ((logprobs - old_logprobs) * response_mask).sum(-1, keepdim=True) / lengths
    ratio = log_ratio.exp().expand_as(logprobs)
    clipped = ratio.clamp(1 - 0.0003, 1 + 0.0004)
    surrogate = -torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
    apart = ref_logprobs - logprobs
    kl = apart.exp() - apart - 1
    return ((surrogate + 0.05 * kl) * response_mask / lengths).sum(-1).mean()


def cispo_k1(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
) -> torch.Tensor:
    """ROLL's CISPO: the ratio is a truncated weight without gradient; K1 beside it."""
    weight = torch.exp(logprobs - old_logprobs).clamp(max=1 + 0.2).detach()
    surrogate = -weight * advantages[:, None] * logprobs
    kl = logprobs - ref_logprobs
    return ((surrogate + 0.1 * kl) * response_mask).sum() / response_mask.sum()


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    f.__name__: f for f in (grpo_k3, dual_clip_k3, clip_k2, gspo, cispo_k1)
}
FORMULAS: dict[str, dict[str, Any]] = {  # words of polgrad.PolicyLossConfig
    "grpo_k3": {"clip": (0.2, 0.2), "aggregation": "token_mean", "kl": ("k3", 0.04)},
    "dual_clip_k3": {
        "clip": (0.2, 0.28, 3.0),
        "aggregation": "seq_mean_token_mean",
        "kl": ("k3", 0.001),
    },
    "clip_k2": {"clip": (0.2, 0.2), "aggregation": "token_sum_norm", "norm_len": 8, "kl": ("k2", 0.01)},
    "gspo": {
        "ratio": "sequence",
        "clip": (0.0003, 0.0004),
        "aggregation": "seq_mean_token_mean",
        "kl": ("k3", 0.05),
    },
    "cispo_k1": {
        "surrogate": "cispo",
        "clip": (None, 0.2),
        "aggregation": "token_mean",
        "kl": ("k1", 0.1),
    },
}
