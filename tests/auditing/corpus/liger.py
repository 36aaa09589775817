"""In the form of Liger-Kernel: static losses of chunks, where ``log_probs`` is over the vocabulary."""

import math

import torch
import torch.nn.functional as F


def k3_loss_fn(log_p, log_q):
    return torch.exp(log_p - log_q) - (log_p - log_q) - 1.0


class LigerFusedLinearGRPOFunction(torch.autograd.Function):
    @staticmethod
    def ppo_loss_fn(
        log_probs,
        selected_token_ids,
        attention_mask,
        advantages,
        ref_per_token_logps=None,
        old_per_token_logps=None,
        epsilon_low=0.2,
        epsilon_high=0.2,
        beta=0.04,
        loss_type="bnpo",
        max_completion_length=None,
        **kwargs,
    ):
        per_token_logps = log_probs.gather(-1, selected_token_ids.unsqueeze(-1)).squeeze(-1)
        if old_per_token_logps is None:
            old_per_token_logps = per_token_logps.detach()
        coef_1 = torch.exp(per_token_logps - old_per_token_logps)
        coef_2 = torch.clamp(coef_1, 1 - epsilon_low, 1 + epsilon_high)
        chosen = torch.min(coef_1 * advantages.unsqueeze(1), coef_2 * advantages.unsqueeze(1))
        per_token_loss = -chosen
        metrics = []
        if beta != 0.0 and ref_per_token_logps is not None:
            kl_div = k3_loss_fn(ref_per_token_logps, per_token_logps)
            per_token_loss = per_token_loss + beta * kl_div
            metrics.append(kl_div.detach().mean())
        if loss_type == "grpo":
            loss = ((per_token_loss * attention_mask).sum(-1) / attention_mask.sum(-1)).mean()
        elif loss_type == "bnpo":
            loss = (per_token_loss * attention_mask).sum() / torch.clamp(attention_mask.sum(), min=1.0)
        else:
            loss = (per_token_loss * attention_mask).sum() / (len(advantages) * max_completion_length)
        return loss, tuple(metrics)


class LigerFusedLinearJSDFunction:
    @staticmethod
    def distillation_loss_fn(student_logits, teacher_logits, beta=0.5, target=None, ignore_index=-100):
        student = F.log_softmax(student_logits, dim=-1)
        teacher = F.log_softmax(teacher_logits, dim=-1)
        if beta == 0:
            jsd = F.kl_div(student, teacher, reduction="none", log_target=True)
        elif beta == 1:
            jsd = F.kl_div(teacher, student, reduction="none", log_target=True)
        else:
            log_mean = torch.logsumexp(
                torch.stack(
                    [
                        student + math.log(1 - beta),
                        teacher + math.log(beta),
                    ]
                ),
                dim=0,
            )
            to_student = F.kl_div(log_mean, student, reduction="none", log_target=True)
            to_teacher = F.kl_div(log_mean, teacher, reduction="none", log_target=True)
            jsd = beta * to_teacher + (1 - beta) * to_student
        if target is not None:
            jsd = jsd.masked_fill((target == ignore_index).unsqueeze(-1), 0.0)
        return jsd.sum()


def reversed_k3(per_token_logps, ref_per_token_logps, completion_mask):
    kl = k3_loss_fn(per_token_logps, ref_per_token_logps)
    return (kl * completion_mask).sum() / completion_mask.sum()
