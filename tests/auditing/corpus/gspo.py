"""In the form of codes of sequence-level ratios: one ratio per answer, differentiated or as a weight."""

import torch


def sequence_log_ratio(logps, old_logps, mask):
    return ((logps - old_logps) * mask).sum(dim=-1)


def gspo_loss(logps, old_logps, rewards, mask, epsilon=3e-4):
    advantages = (rewards - rewards.mean()).detach()
    s = torch.exp(sequence_log_ratio(logps, old_logps, mask) / mask.sum(-1))
    return -torch.min(s * advantages, s.clamp(1 - epsilon, 1 + epsilon) * advantages).mean()


def sequence_ratio_loss(logps, old_logps, ref_logps, rewards, mask, kl_coef=0.05):
    ratio = torch.exp(sequence_log_ratio(logps, old_logps, mask))
    kl = sequence_log_ratio(logps, ref_logps, mask).detach()
    return -(ratio * (rewards - kl_coef * kl)).mean()


def sequence_weighted_k2(logps, old_logps, ref_logps, mask):
    weight = torch.exp(sequence_log_ratio(logps, old_logps, mask)).detach()
    k2 = 0.5 * (logps - ref_logps) ** 2
    return (weight * (k2 * mask).sum(-1)).mean()


def sequence_weighted_k3(logps, old_logps, ref_logps, mask):
    weight = torch.exp(sequence_log_ratio(logps, old_logps, mask)).detach()
    k3 = (ref_logps - logps).exp() - 1 + logps - ref_logps
    return (weight[:, None] * k3 * mask).sum(-1).mean()


def truncated_weight_k2(logps, old_logps, ref_logps, mask, cap=2.0):
    rho = (logps - old_logps).exp().clamp(max=cap).detach()
    return (rho * (logps - ref_logps).pow(2) / 2 * mask).sum() / mask.sum()
