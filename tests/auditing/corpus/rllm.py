"""In the form of small trainers (rLLM, oat, single files): advantages of tokens, entropy, several terms."""

import torch
import torch.nn.functional as F

from tests.support.corpus import Hand


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


VERDICTS = {
    "compute_loss": Hand(
        fresh={"expected_reward": -1.0, "token_reverse_kl": 0.02},
        stale={"behavior_reward": -1.0, "behavior_squared_log_ratio": 0.02},
        why="r is charged to every token, the K1 of a token to that token alone.",
    ),
    "policy_entropy_kl_loss": Hand(
        fresh={"expected_reward": -1.0, "token_reverse_kl": 0.01, "token_entropy": -0.001},
        stale={"behavior_reward": -1.0, "token_reverse_kl": 0.01, "token_entropy": -0.001},
        per="tokens",
        why="REINFORCE, an exact KL, an exact entropy that is maximized. Stale: no ratio.",
    ),
    "causal_lm_loss": Hand(
        fresh={},
        stale={"behavior_log_likelihood": -1.0},
        per="tokens",
        why="the score of the samples: zero where the policy itself has sampled.",
    ),
    "leave_one_out_loss": Hand(
        fresh={"expected_reward": -1.0},
        stale={"behavior_reward": -1.0, "behavior_log_likelihood": None},
        why="the baseline is of the other answers; N/(N - 1) is 1 in the limit. Stale: it stays.",
    ),
    "summed_squares": Hand(
        fresh={"token_reverse_kl": 2.0},
        stale={"behavior_squared_log_ratio": 2.0},
        per="answers",
        why="twice K2, summed over the batch.",
    ),
    "padded_mean": Hand(
        fresh={"token_reverse_kl": 1.0},
        stale={"behavior_squared_log_ratio": 1.0},
        per="width",
        why="K2; padding is 0 and counts in the mean.",
    ),
}
