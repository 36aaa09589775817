"""In the form of repositories of on-policy distillation: logits and labels, shifted inside; heads."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F


def reverse_kl_loss(student_logits, teacher_logits, labels, ignore_index=-100):
    shift_student = F.log_softmax(student_logits[:, :-1, :], dim=-1)
    shift_teacher = F.log_softmax(teacher_logits[:, :-1, :], dim=-1)
    mask = labels[:, 1:] != ignore_index
    kl = F.kl_div(shift_teacher, shift_student, log_target=True, reduction="none").sum(-1)
    return kl[mask].mean()


def reverse_kl_loss_exchanged(student_logits, teacher_logits, labels, ignore_index=-100):
    mask = labels[:, 1:] != ignore_index
    student = student_logits[:, :-1][mask].log_softmax(-1)
    teacher = teacher_logits[:, :-1][mask].log_softmax(-1)
    return F.kl_div(student, teacher, log_target=True, reduction="batchmean")


def compute_loss_func(outputs: SimpleNamespace, teacher_outputs: SimpleNamespace, labels: torch.Tensor):
    logits = outputs.logits[..., :-1, :].contiguous().float()
    teacher = teacher_outputs.logits[..., :-1, :].contiguous().float()
    shift_labels = labels[..., 1:].contiguous()
    valid = shift_labels.ne(-100)
    p = teacher.softmax(dim=-1)
    cross_entropy = -(p * logits.log_softmax(dim=-1)).sum(dim=-1)
    return (cross_entropy * valid).sum() / valid.sum()


def sampled_token_kl(logits, teacher_logits, input_ids, attention_mask, prompt_length=1):
    targets = input_ids[:, 1:].unsqueeze(-1)
    logps = torch.gather(logits[:, :-1].log_softmax(-1), 2, targets).squeeze(2)
    with torch.no_grad():
        teacher_logps = torch.gather(teacher_logits[:, :-1].log_softmax(-1), 2, targets).squeeze(2)
    mask = attention_mask[:, 1:].clone()
    mask[:, : prompt_length - 1] = 0
    advantages = (teacher_logps - logps).detach()
    return -(advantages * logps * mask).sum() / mask.sum()


def topk_reverse_kl_notail(student_logits, teacher_logits, response_mask, k=2):
    student_logps = student_logits.log_softmax(-1)
    teacher_logps = teacher_logits.log_softmax(-1)
    top, indices = student_logps.topk(k, dim=-1)
    kl = (top.exp() * (top - teacher_logps.gather(-1, indices))).sum(-1)
    return (kl * response_mask).sum() / response_mask.sum()


def mixed_kl(student_logits, teacher_logits, mask, alpha=0.25):
    s, t = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
    forward = (t.exp() * (t - s)).sum(-1)
    reverse = (s.exp() * (s - t)).sum(-1)
    return ((alpha * forward + (1 - alpha) * reverse) * mask).sum(-1).mean()
