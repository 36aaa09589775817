"""In the form of Megatron-LM: per-token terms as a tuple, and a top-k KL of the teacher's tokens."""

import torch

from tests.support.corpus import Hand


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


VERDICTS = {
    "calculate_grpo_loss": Hand(
        fresh={"expected_reward": -1.0, "token_forward_kl": 0.01},
        stale=None,
        options={"clamp_eps_lower": 0.2, "clamp_eps_upper": 0.28, "kl_beta": 0.01},
        why="one value per token; K3 differentiated.",
    ),
    "topk_kl_div": Hand(
        fresh={"token_conditional_forward_kl_reference_top_2": 1.0},
        stale={"token_conditional_forward_kl_reference_top_2": 1.0},
        per="tokens",
        why="the KL of the two distributions conditioned on the reference's top k, k = 2: nothing of the "
        "probability of leaving it.",
    ),
}
