"""In the form of TRL: GRPO, RLOO, GKD."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


def per_token_kl(per_token_logps, ref_per_token_logps):
    return torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1


@dataclass
class GRPOConfig:
    beta: float = 0.04
    epsilon: float = 0.2
    epsilon_high: float | None = None
    use_bias_correction_kl: bool = True
    loss_type: str = "dapo"


class GRPOTrainer:
    def __init__(self, args: GRPOConfig | None = None):
        self.args = args or GRPOConfig()
        self.beta = self.args.beta
        self.low = self.args.epsilon
        self.high = self.args.epsilon_high or self.args.epsilon

    def _compute_loss(self, per_token_logps, inputs):
        mask = inputs["completion_mask"]
        old = inputs.get("old_per_token_logps")
        old = per_token_logps.detach() if old is None else old
        advantages = inputs["advantages"].unsqueeze(1)
        coef_1 = torch.exp(per_token_logps - old)
        coef_2 = torch.clamp(coef_1, 1 - self.low, 1 + self.high)
        per_token_loss = -torch.min(coef_1 * advantages, coef_2 * advantages)
        if self.beta != 0.0:
            kl = per_token_kl(per_token_logps, inputs["ref_per_token_logps"])
            if self.args.use_bias_correction_kl:
                kl = kl * coef_1
            per_token_loss = per_token_loss + self.beta * kl
        if self.args.loss_type == "grpo":
            return ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
        return (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0)


def rloo_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    ref_logps: torch.Tensor,
    completion_mask: torch.Tensor,
    rewards: torch.Tensor,
    beta: float = 0.05,
    epsilon: float = 0.2,
) -> torch.Tensor:
    with torch.no_grad():
        kl = ((old_logps - ref_logps) * completion_mask).sum(-1)
        scores = rewards - beta * kl
        others = (scores.sum() - scores) / (len(scores) - 1)
        advantages = scores - others
    ratio = ((logps - old_logps) * completion_mask).sum(-1).exp()
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon)
    return torch.max(-advantages * ratio, -advantages * clipped).mean()


class GKDTrainer:
    @staticmethod
    def generalized_jsd_loss(
        student_logits, teacher_logits, labels=None, beta=0.5, temperature=1.0, reduction="batchmean"
    ):
        student = F.log_softmax(student_logits / temperature, dim=-1)
        teacher = F.log_softmax(teacher_logits / temperature, dim=-1)
        if beta == 0:
            jsd = F.kl_div(student, teacher, reduction="none", log_target=True)
        elif beta == 1:
            jsd = F.kl_div(teacher, student, reduction="none", log_target=True)
        else:
            weight = torch.tensor(beta, dtype=student.dtype)
            both = torch.stack([student + torch.log1p(-weight), teacher + torch.log(weight)])
            mixture = torch.logsumexp(both, dim=0)
            jsd = weight * F.kl_div(mixture, teacher, reduction="none", log_target=True)
            jsd = jsd + (1 - weight) * F.kl_div(mixture, student, reduction="none", log_target=True)
        if labels is not None:
            mask = labels != -100
            jsd = jsd[mask]
        if reduction == "batchmean":
            return jsd.sum() / (mask.sum() if labels is not None else jsd.size(0))
        return jsd.sum() if reduction == "sum" else jsd
