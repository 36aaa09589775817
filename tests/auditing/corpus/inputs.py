"""In the form of trainers whose inputs do not do what they are named for."""

import torch


def rewards_over_tokens_and_rows(logp, ref_logp, rewards, mask, beta=0.1):
    policy = -(logp * rewards.unsqueeze(-1) * mask).sum(1) / mask.sum()
    kl = 0.5 * (logp - ref_logp) ** 2
    return policy.mean() + beta * (kl * mask).sum() / mask.sum()


def ratio_of_ones(logp, ref_logp, advantages, mask, beta=0.1):
    ratio = torch.exp(torch.zeros_like(logp))
    gain = torch.min(ratio, ratio.clamp(0.8, 1.2)) * advantages.unsqueeze(-1)
    log_w = ref_logp - logp
    return ((beta * (log_w.exp() - log_w - 1) - gain) * mask).sum() / mask.sum()


def reference_overwritten(logp, old_logp, ref_logp, advantages, mask, beta=0.1):
    ref_logp = old_logp
    ratio, a = torch.exp(logp - old_logp), advantages.unsqueeze(-1)
    gain = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
    log_w = ref_logp - logp
    return ((beta * (log_w.exp() - log_w - 1) - gain) * mask).sum() / mask.sum()


def clip_on_the_wrong_side(logp, old_logp, advantages, mask):
    ratio, a = torch.exp(logp - old_logp), advantages.unsqueeze(-1)
    clipped = ratio.clamp(0.8, 1.2)
    gain = torch.where(a > 0, torch.min(ratio * a, clipped * a), torch.max(ratio * a, clipped * a))
    return -(gain * mask).sum() / mask.sum()
