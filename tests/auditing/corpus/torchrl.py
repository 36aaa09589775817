"""In the form of TorchRL: modules that read a dict and return several losses; .mean() over padding."""

from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class LLMLossOutput:
    loss_objective: torch.Tensor
    loss_kl_to_ref: torch.Tensor | None = None
    kl_to_ref: torch.Tensor | None = None

    @property
    def loss(self) -> torch.Tensor:
        return (
            self.loss_objective if self.loss_kl_to_ref is None else self.loss_objective + self.loss_kl_to_ref
        )


class GRPOLoss(nn.Module):
    def __init__(self, clip_epsilon: float = 0.2, kl_to_ref_coeff: float | None = 0.01):
        super().__init__()
        self.register_buffer("clip_epsilon", torch.tensor(clip_epsilon))
        self.kl_to_ref_coeff = kl_to_ref_coeff

    def forward(self, tensordict: dict[str, torch.Tensor]) -> LLMLossOutput:
        mask = tensordict["assistant_mask"].bool()
        cur_log_prob = tensordict["cur_log_prob"].masked_fill(~mask, 0.0)
        prev_log_prob = tensordict["log_probs"].masked_fill(~mask, 0.0)
        advantage = tensordict["advantage"].unsqueeze(-1) * mask
        log_weight = cur_log_prob - prev_log_prob
        bounds = (-self.clip_epsilon).log1p(), self.clip_epsilon.log1p()
        gain1 = log_weight.exp() * advantage
        gain2 = log_weight.clamp(*bounds).exp() * advantage
        gain = torch.stack([gain1, gain2], -1).min(dim=-1).values
        out = LLMLossOutput(loss_objective=-gain.mean())
        if self.kl_to_ref_coeff is not None:
            ref_log_prob = tensordict["ref_log_probs"].masked_fill(~mask, 0.0)
            loss_kl, kl = kl_to_ref(cur_log_prob, ref_log_prob, mask, self.kl_to_ref_coeff)
            out.loss_kl_to_ref, out.kl_to_ref = loss_kl, kl
        return out


def kl_to_ref(cur_log_prob, ref_log_prob, mask, coeff=0.01):
    diff = torch.where(mask.bool(), ref_log_prob - cur_log_prob, 0.0)
    kl_penalty = (diff.expm1() - diff).mean()
    return coeff * kl_penalty, kl_penalty.detach()
