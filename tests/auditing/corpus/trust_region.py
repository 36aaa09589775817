"""In the form of trainers that hold the policy near the one that sampled: penalties to the old policy."""

import torch
import torch.nn.functional as F


def ppo_penalty(logprobs, old_logprobs, advantages, mask, kl_coef=0.1):
    log_ratio = logprobs - old_logprobs
    pg_loss = -advantages.unsqueeze(-1) * log_ratio.exp()
    return ((pg_loss + kl_coef * 0.5 * log_ratio**2) * mask).sum(-1).mean()


def ppo_adaptive_kl(logits, old_logits, actions, advantages, mask, beta=0.5):
    new, old = F.log_softmax(logits, dim=-1), F.log_softmax(old_logits, dim=-1)
    logp, old_logp = (x.gather(-1, actions.unsqueeze(-1)).squeeze(-1) for x in (new, old))
    kl = (old.exp() * (old - new)).sum(-1)
    surrogate = (logp - old_logp).exp() * advantages.unsqueeze(-1)
    return ((beta * kl - surrogate) * mask).sum() / mask.sum()


def trpo_penalty(logits, old_logits, actions, advantages, mask, beta=0.5):
    new, old = F.log_softmax(logits, dim=-1), F.log_softmax(old_logits, dim=-1)
    logp, old_logp = (x.gather(-1, actions.unsqueeze(-1)).squeeze(-1) for x in (new, old))
    kl = (new.exp() * (new - old)).sum(-1)
    surrogate = (logp - old_logp).exp() * advantages.unsqueeze(-1)
    return ((beta * kl - surrogate) * mask).sum() / mask.sum()


def approx_kl_old_new(logprobs, old_logprobs, mask):
    return ((old_logprobs - logprobs) * mask).sum() / mask.sum()


def approx_kl_new_old(logprobs, old_logprobs, mask):
    return ((logprobs - old_logprobs) * mask).sum() / mask.sum()


def k3_of_the_ratio(logprobs, old_logprobs, mask):
    log_ratio = logprobs - old_logprobs
    return ((torch.exp(log_ratio) - 1 - log_ratio) * mask).sum(dim=1).mean()


def k3_of_each_answer(logprobs, old_logprobs, mask):
    log_ratio = logprobs - old_logprobs
    each = (torch.exp(log_ratio) - 1 - log_ratio) * mask
    return (each.sum(dim=1) / mask.sum(dim=1)).mean()


def ratio_penalty(logprobs, old_logprobs, mask):
    return ((torch.exp(logprobs - old_logprobs) - 1) ** 2 * mask).sum(dim=1).mean()


def absolute_ratio_penalty(logprobs, old_logprobs, mask):
    return ((torch.exp(logprobs - old_logprobs) - 1).abs() * mask).sum(dim=1).mean()


def kimi_researcher_loss(logprobs, old_logprobs, rewards, mask, tau=0.1):
    log_ratio = ((logprobs - old_logprobs) * mask).sum(-1)
    return ((rewards - tau * log_ratio) ** 2).mean()


def sequence_penalty(logprobs, old_logprobs, advantages, mask, beta=0.2):
    log_ratio = ((logprobs - old_logprobs) * mask).sum(-1)
    ratio = log_ratio.exp()
    return (-ratio * advantages + beta * ratio.detach() * log_ratio.detach() * log_ratio).mean()


def drpo_loss(logprobs, old_logprobs, advantages, mask, eps=12.5):
    ratio = torch.exp(logprobs - old_logprobs)
    advantages = advantages.unsqueeze(-1)
    quadratic = advantages.abs() * old_logprobs.exp() * (ratio - 1) ** 2 / (2 * eps)
    return ((-advantages * ratio + quadratic) * mask).sum(-1).mean()


def ppo_clip_and_penalty(logprobs, old_logprobs, advantages, mask, eps=0.2, kl_coef=0.01):
    log_ratio = logprobs - old_logprobs
    ratio, advantages = log_ratio.exp(), advantages.unsqueeze(-1)
    pg_loss = -torch.min(ratio * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)
    return ((pg_loss + kl_coef * log_ratio**2) * mask).sum(-1).mean()


def reference_and_sampler(logprobs, old_logprobs, ref_logprobs, mask):
    log_ratio, gap = logprobs - old_logprobs, ref_logprobs - logprobs
    kl = (gap.exp() - 1 - gap) * log_ratio.exp().detach()
    return ((kl + 0.05 * log_ratio**2) * mask).sum(-1).mean()


def opd_penalized_advantages(logprobs, old_logprobs, teacher_logprobs, advantages, mask, opd_kl_coef=0.1):
    advantages = advantages.unsqueeze(-1) - opd_kl_coef * (old_logprobs - teacher_logprobs)
    return -((logprobs - old_logprobs).exp() * advantages * mask).sum(-1).mean()


def dro_loss(logprobs, old_logprobs, advantages, mask, dro_beta=0.5):
    log_ratio = logprobs - old_logprobs
    loss = -(logprobs * advantages.unsqueeze(-1) - dro_beta / 2 * log_ratio**2)
    return (loss * mask).sum(-1).mean()
