"""In the form of torchtune: modules; the sampler's log-probs come first; exact losses of distillation."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x * mask).sum() / (mask.sum())


class GRPOSimpleLoss(nn.Module):
    def __init__(self, kl_coeff: float = 0.1, epsilon: float = 0.2):
        super().__init__()
        self.kl_coeff = kl_coeff
        self.epsilon = epsilon

    def forward(
        self,
        pi_old_logprobs: torch.Tensor,
        pi_logprobs: torch.Tensor,
        ref_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        padding_masks: torch.Tensor | None = None,
    ):
        if padding_masks is None:
            padding_masks = torch.ones_like(pi_logprobs)
        per_token_kl = torch.exp(ref_logprobs - pi_logprobs) - (ref_logprobs - pi_logprobs) - 1
        per_token_policy_loss = torch.exp(pi_logprobs - pi_logprobs.detach()) * advantages[:, None]
        per_token_loss = -(per_token_policy_loss - self.kl_coeff * per_token_kl)
        loss = masked_mean(per_token_loss, padding_masks)
        with torch.no_grad():
            ratios = torch.exp(pi_logprobs - pi_old_logprobs).mean()
            kl_loss = masked_mean(per_token_kl, padding_masks)
        return loss, -masked_mean(per_token_policy_loss, padding_masks), kl_loss, ratios


class ForwardKLLoss(nn.Module):
    def __init__(self, ignore_index: int = -100):
        super().__init__()
        self.ignore_index = ignore_index

    def forward(
        self, student_logits: torch.Tensor, teacher_logits: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        teacher_prob = F.softmax(teacher_logits, dim=-1)
        student_logprob = F.log_softmax(student_logits, dim=-1)
        x = torch.sum(teacher_prob * student_logprob, dim=-1).view(-1)
        mask = (labels != self.ignore_index).int()
        return -torch.sum(x * mask.view(-1)) / torch.sum(mask.view(-1))


class ReverseKLLoss(nn.Module):
    def __init__(self, ignore_index: int = -100):
        super().__init__()
        self.ignore_index = ignore_index

    def forward(
        self, student_logits: torch.Tensor, teacher_logits: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        student_prob = F.softmax(student_logits, dim=-1)
        student_logprob = F.log_softmax(student_logits, dim=-1)
        teacher_logprob = F.log_softmax(teacher_logits, dim=-1)
        x = (student_prob * (teacher_logprob - student_logprob)).sum(-1).view(-1)
        mask = (labels != self.ignore_index).int().view(-1)
        return -torch.sum(x * mask) / torch.sum(mask)
