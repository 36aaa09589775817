"""In the form of Megatron-LM: per-token terms as a tuple, and a top-k KL of the teacher's tokens."""

import torch


def calculate_grpo_loss(
    current_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clamp_eps_lower: float,
    clamp_eps_upper: float,
    kl_beta: float,
    entropy_weight: float = 0.0,
):
    ratios = (current_logprobs - old_logprobs).exp()
    clamped_ratios = ratios.clamp(1 - clamp_eps_lower, 1 + clamp_eps_upper)
    advantages = advantages.view(-1, 1)
    ref_diff = ref_logprobs - current_logprobs
    kl_term = ref_diff.exp() - ref_diff - 1
    entropy_term = -current_logprobs.exp() * current_logprobs
    loss = -torch.min(ratios * advantages, clamped_ratios * advantages) + kl_beta * kl_term
    return loss - entropy_weight * entropy_term, kl_term, ratios, entropy_term


def topk_kl_div(student_logits, teacher_logits, loss_mask, k=2):
    teacher_topk, indices = teacher_logits.topk(k, dim=-1)
    teacher_logprobs = teacher_topk.log_softmax(dim=-1)
    student_logprobs = student_logits.gather(-1, indices).log_softmax(dim=-1)
    kl = (teacher_logprobs.exp() * (teacher_logprobs - student_logprobs)).sum(dim=-1)
    return (kl * loss_mask).sum() / loss_mask.sum()
