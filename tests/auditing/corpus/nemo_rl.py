"""In the form of NeMo-RL: loss objects called with logits or log-probs of full sequences and a dict."""

from typing import Any, TypedDict

import torch


def masked_mean(values, mask, global_normalization_factor=None):
    total = mask.sum() if global_normalization_factor is None else global_normalization_factor
    return (values * mask).sum() / total


def calculate_kl(
    logprobs: torch.Tensor,
    logprobs_reference: torch.Tensor,
    kl_type: str = "k3",
    input_clamp_value: float | None = 20.0,
    output_clamp_value: float | None = 10.0,
    importance_sampling_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    logr = logprobs_reference - logprobs
    if input_clamp_value is not None:
        logr = logr.clamp(min=-input_clamp_value, max=input_clamp_value)
    if kl_type == "k1":
        kl = -logr
    elif kl_type == "k2":
        kl = torch.square(logr) / 2
    elif kl_type == "k3":
        kl = torch.exp(logr) - 1 - logr
    else:
        raise ValueError(f"Invalid KL type: {kl_type}")
    if importance_sampling_weights is not None:
        kl = importance_sampling_weights * kl
    if output_clamp_value is not None:
        kl = kl.clamp(min=-output_clamp_value, max=output_clamp_value)
    return kl


class ClippedPGLossConfig(TypedDict):
    reference_policy_kl_penalty: float
    reference_policy_kl_type: str
    ratio_clip_min: float
    ratio_clip_max: float
    use_on_policy_kl_approximation: bool


DEFAULTS: ClippedPGLossConfig = {
    "reference_policy_kl_penalty": 0.01,
    "reference_policy_kl_type": "k3",
    "ratio_clip_min": 0.2,
    "ratio_clip_max": 0.2,
    "use_on_policy_kl_approximation": False,
}


class ClippedPGLossFn:
    def __init__(self, cfg: ClippedPGLossConfig | None = None):
        self.cfg = {**DEFAULTS, **(cfg or {})}

    def __call__(self, next_token_logits: torch.Tensor, data: dict[str, Any]):
        token_mask = data["token_mask"][:, 1:]
        advantages = data["advantages"][:, 1:]
        prev_logprobs = data["prev_logprobs"][:, 1:]
        reference_policy_logprobs = data["reference_policy_logprobs"][:, 1:]
        mask = token_mask * data["sample_mask"].unsqueeze(-1)
        chosen = data["input_ids"][:, 1:].unsqueeze(-1)
        curr_logprobs = next_token_logits[:, :-1].log_softmax(-1).gather(-1, chosen).squeeze(-1)
        if self.cfg["use_on_policy_kl_approximation"]:
            weights = torch.exp(curr_logprobs - data["generation_logprobs"][:, 1:])
        else:
            weights = torch.exp(curr_logprobs - curr_logprobs.detach())
        kl = self.cfg["reference_policy_kl_penalty"] * calculate_kl(
            curr_logprobs,
            reference_policy_logprobs,
            self.cfg["reference_policy_kl_type"],
            importance_sampling_weights=weights,
        )
        ratios = (curr_logprobs - prev_logprobs).exp()
        clamped = ratios.clamp(1.0 - self.cfg["ratio_clip_min"], 1.0 + self.cfg["ratio_clip_max"])
        clip_loss = torch.max(-advantages * ratios, -advantages * clamped)
        actor_loss, kl_loss = masked_mean(clip_loss, mask), masked_mean(kl, mask)
        return actor_loss + kl_loss, {"kl_penalty": kl_loss.item(), "loss": actor_loss.item()}


def weighted_k2_loss(
    curr_logprobs: torch.Tensor, reference_policy_logprobs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    weights = torch.exp(curr_logprobs - curr_logprobs.detach())
    kl = calculate_kl(
        curr_logprobs, reference_policy_logprobs, "k2", None, None, importance_sampling_weights=weights
    )
    return masked_mean(kl, mask)


def on_policy_weighted_k1_loss(
    curr_logprobs: torch.Tensor,
    generation_logprobs: torch.Tensor,
    reference_policy_logprobs: torch.Tensor,
    mask: torch.Tensor,
    reference_policy_kl_penalty: float = 0.01,
) -> torch.Tensor:
    weights = torch.exp(curr_logprobs - generation_logprobs)
    kl = calculate_kl(curr_logprobs, reference_policy_logprobs, "k1", importance_sampling_weights=weights)
    return reference_policy_kl_penalty * masked_mean(kl, mask)
