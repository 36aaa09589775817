"""In the forms of verl, NeMo-RL, TRL, Megatron, slime and ms-swift: losses of the k likeliest tokens.

They are given tensors [batch, seq, k] of the teacher's, or of the student's, and the ids of those tokens. A
world of the audit has k + 2 tokens.
"""

import torch
import torch.nn.functional as F


def compute_forward_kl_topk(  # verl
    student_logits: torch.Tensor,
    teacher_topk_log_probs: torch.Tensor,
    teacher_topk_ids: torch.Tensor,
    response_mask: torch.Tensor,
    log_prob_min_clamp: float | None = None,
    loss_max_clamp: float | None = None,
):
    student_log_probs = F.log_softmax(student_logits, dim=-1)
    student_topk_log_probs = torch.gather(student_log_probs, dim=-1, index=teacher_topk_ids)
    if log_prob_min_clamp is not None:
        student_topk_log_probs = student_topk_log_probs.clamp_min(log_prob_min_clamp)
        teacher_topk_log_probs = teacher_topk_log_probs.clamp_min(log_prob_min_clamp)
    log_p, log_q = teacher_topk_log_probs.float(), student_topk_log_probs.float()
    losses = (log_p.exp() * (log_p - log_q)).sum(dim=-1)
    if loss_max_clamp is not None:
        losses = losses.clamp(min=0.0, max=loss_max_clamp)
    loss = (losses * response_mask).sum() / response_mask.sum()
    return loss, {"student_mass": student_topk_log_probs.exp().sum(dim=-1).mean().item()}


class DistillationLossFn:  # NeMo-RL
    def __init__(self, kl_type: str = "mixed", mixed_kl_weight: float = 0.25, topk_logits_k: int = 64):
        self.kl_type = kl_type
        self.mixed_kl_weight = mixed_kl_weight
        self.k = topk_logits_k

    def __call__(self, next_token_logits, data):
        teacher_topk_logits = data["teacher_topk_logits"].to(torch.float32)
        indices = data["teacher_topk_indices"]
        student = next_token_logits.gather(-1, indices).log_softmax(-1)
        teacher = teacher_topk_logits.log_softmax(-1)
        forward = (teacher.exp() * (teacher - student)).sum(-1)
        reverse = (student.exp() * (student - teacher)).sum(-1)
        w = {"forward": 1.0, "reverse": 0.0, "mixed": self.mixed_kl_weight}[self.kl_type]
        mask = data["token_mask"]
        return ((w * forward + (1 - w) * reverse) * mask).sum() / mask.sum().clamp(min=1)


def add_tail_bucket(log_probs):  # TRL
    log_s = torch.clamp(torch.logsumexp(log_probs, dim=-1, keepdim=True), max=-1e-7)
    return torch.cat([log_probs, torch.log(-torch.expm1(log_s))], dim=-1)


def server_distillation_loss(
    student_logits, teacher_topk_logprobs, teacher_topk_token_ids, completion_mask, add_tail=True
):
    valid = teacher_topk_logprobs > float("-inf")
    student = F.log_softmax(student_logits, dim=-1).gather(dim=-1, index=teacher_topk_token_ids)
    student, teacher = (torch.where(valid, x, 0.0) for x in (student, teacher_topk_logprobs))
    if add_tail:
        student, teacher = add_tail_bucket(student), add_tail_bucket(teacher)
    else:
        student, teacher = (x - torch.logsumexp(x, -1, keepdim=True) for x in (student, teacher))
    per_token_loss = F.kl_div(teacher, student, reduction="none", log_target=True).sum(-1)
    each = (per_token_loss * completion_mask).sum(-1) / completion_mask.sum(-1).clamp(min=1.0)
    return each.mean()


def topk_self_distillation_loss(student_logits, teacher_logits, completion_mask, *, distillation_topk=100):
    top_student, topk_indices = torch.topk(student_logits, k=distillation_topk, dim=-1)
    student = top_student - torch.logsumexp(student_logits, dim=-1, keepdim=True)
    teacher = torch.gather(teacher_logits, dim=-1, index=topk_indices)
    teacher = teacher - torch.logsumexp(teacher_logits, dim=-1, keepdim=True)
    student, teacher = (x - torch.logsumexp(x, dim=-1, keepdim=True) for x in (student, teacher))
    mixture = torch.logsumexp(torch.stack([student, teacher]), dim=0) - torch.tensor(2.0).log()
    jsd = sum(F.kl_div(mixture, x, reduction="none", log_target=True) for x in (student, teacher)) / 2
    return (jsd.sum(-1) * completion_mask).sum() / completion_mask.sum()


def topk_kl_div(  # Megatron
    student_logits, teacher_topk_logprobs, topk_indices, loss_mask, add_ghost_token=True
):
    student_topk_logprobs = student_logits.float().log_softmax(dim=-1).gather(-1, topk_indices)
    if add_ghost_token:
        ghosts = [
            torch.log1p(-x.exp().sum(-1, keepdim=True))
            for x in (teacher_topk_logprobs, student_topk_logprobs)
        ]
        teacher_topk_logprobs = torch.cat([teacher_topk_logprobs, ghosts[0]], -1)
        student_topk_logprobs = torch.cat([student_topk_logprobs, ghosts[1]], -1)
    kl = teacher_topk_logprobs.exp() * (teacher_topk_logprobs - student_topk_logprobs)
    return torch.sum(kl.sum(dim=-1) * loss_mask)


def opd_topk_loss(batch, opd_kl_coef: float = 0.5):  # slime
    ids = batch["teacher_topk_token_ids"]
    log_probs = batch["logits"].log_softmax(-1).gather(-1, ids)
    reverse = (log_probs.exp() * (log_probs - batch["teacher_topk_log_probs"])).sum(-1)
    masks = batch["loss_masks"]
    return opd_kl_coef * ((reverse * masks).sum(-1) / masks.sum(-1)).mean(), {"opd": reverse.detach()}


def student_head_loss(student_topk_log_probs, teacher_at_student_topk_log_probs, loss_mask):
    student, teacher = student_topk_log_probs, teacher_at_student_topk_log_probs
    student, teacher = (x - x.logsumexp(-1, keepdim=True) for x in (student, teacher))
    return ((student.exp() * (student - teacher)).sum(-1) * loss_mask).sum(-1).mean()


class SparseKD(torch.nn.Module):  # ms-swift, torchtune
    def __init__(self, ignore_index: int = -100):
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, logits, teacher_topk_probs, teacher_topk_indices, labels):
        targets = teacher_topk_probs[:, :-1] / teacher_topk_probs[:, :-1].sum(-1, keepdim=True)
        logps = logits[:, :-1].log_softmax(-1).gather(-1, teacher_topk_indices[:, :-1])
        cross_entropy = -(targets * logps).sum(-1)
        return cross_entropy[labels[:, 1:] != self.ignore_index].mean()
