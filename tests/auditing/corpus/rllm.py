"""In the form of small trainers (rLLM, oat, single files): advantages of tokens, entropy, several terms."""

import torch
import torch.nn.functional as F


def compute_loss(log_probs, ref_log_probs, rewards, mask, beta=0.02):
    token_adv = rewards[:, None] - beta * (log_probs - ref_log_probs).detach()
    return -(token_adv * log_probs * mask).sum(-1).mean()


def policy_entropy_kl_loss(logits, ref_logits, actions, advantages, loss_mask, kl_coef=0.01, ent_coef=0.001):
    logprobs_all, ref_all = F.log_softmax(logits, -1), F.log_softmax(ref_logits, -1)
    logprobs = logprobs_all.gather(-1, actions[..., None])[..., 0]
    entropy = -(logprobs_all.exp() * logprobs_all).sum(-1)
    kl = (logprobs_all.exp() * (logprobs_all - ref_all)).sum(-1)
    loss = -advantages[:, None] * logprobs + kl_coef * kl - ent_coef * entropy
    return (loss * loss_mask).sum() / loss_mask.sum()


def causal_lm_loss(logits, labels):
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    return F.cross_entropy(
        shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1), ignore_index=-100
    )


def leave_one_out_loss(seq_log_probs, rewards):
    n = rewards.numel()
    baseline = (rewards.sum() - rewards) / (n - 1)
    return -torch.mean((rewards - baseline) * seq_log_probs)


def summed_squares(log_probs, ref_log_probs, attention_mask):
    return ((log_probs - ref_log_probs) ** 2 * attention_mask).sum()


def padded_mean(log_probs, ref_log_probs, attention_mask):
    delta = (log_probs - ref_log_probs) * attention_mask
    return (0.5 * delta.square()).mean()
