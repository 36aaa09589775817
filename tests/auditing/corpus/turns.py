"""Losses of trainers of several turns: masks with holes, prompts beside answers, lists of answers."""

import torch


def masked_mean(x, mask):
    return (x * mask).sum() / mask.sum().clamp(min=1)


def grpo_with_tools(log_probs, old_log_probs, ref_log_probs, advantages, loss_mask, kl_coef=0.05):
    ratio = torch.exp(log_probs - old_log_probs)
    pg_loss = -advantages.unsqueeze(-1) * ratio
    kl = 0.5 * (log_probs - ref_log_probs) ** 2
    return masked_mean(pg_loss + kl_coef * kl, loss_mask)


def returns_with_tools(log_probs, old_log_probs, ref_log_probs, rewards, loss_mask, kl_coef=0.1):
    # the penalty stops at the last token of the answer, and not at the tool's
    inside = loss_mask.flip(-1).cumsum(-1).flip(-1) > 0
    token_rewards = -kl_coef * (old_log_probs - ref_log_probs).detach() * inside
    returns = token_rewards.flip(-1).cumsum(-1).flip(-1) + rewards.unsqueeze(-1)
    return -(torch.exp(log_probs - old_log_probs) * returns * loss_mask).sum(-1).mean()


def masked_returns(log_probs, old_log_probs, ref_log_probs, rewards, loss_mask, kl_coef=0.1):
    token_rewards = -kl_coef * (old_log_probs - ref_log_probs).detach() * loss_mask
    returns = token_rewards.flip(-1).cumsum(-1).flip(-1) + rewards.unsqueeze(-1)
    return -(torch.exp(log_probs - old_log_probs) * returns * loss_mask).sum(-1).mean()


def advantages_of_a_critic(
    log_probs, old_log_probs, ref_log_probs, scores, values, old_values, loss_mask, kl_coef=0.05
):
    token_rewards = -kl_coef * (old_log_probs - ref_log_probs) * loss_mask
    returns = token_rewards.flip(-1).cumsum(-1).flip(-1) + scores.unsqueeze(-1)
    advantages = (returns - values).detach() + 0 * old_values
    return -(torch.exp(log_probs - old_log_probs) * advantages * loss_mask).sum(-1).mean()


def attention_minus_prompt(logprobs, ref_logprobs, attention_mask, beta=0.1):
    kl = 0.5 * (logprobs - ref_logprobs) ** 2
    return beta * (kl * attention_mask).sum(-1).mean()


def score_ratio_of_all_tokens(logp, old_logp, rewards, response_mask, attention_mask):
    ratio = torch.exp(((logp - old_logp) * attention_mask).sum(-1) / response_mask.sum(-1))
    return -(ratio * rewards).mean()


def mean_over_turns(logp, ref_logp, response_mask, response_length, beta=0.1):
    kl = 0.5 * (logp - ref_logp) ** 2 * response_mask
    return beta * (kl.sum(-1) / response_length).mean()


def shifted_inside(logps, ref_logps, attention_mask, loss_mask, beta=0.1):
    logps, ref_logps = logps[:, :-1], ref_logps[:, :-1]
    mask = attention_mask[:, 1:] * loss_mask[:, 1:]
    return beta * (0.5 * (logps - ref_logps) ** 2 * mask).sum(-1).mean()


def one_shorter(log_probs, ref_log_probs, assistant_mask, advantages):
    mask = assistant_mask[:, 1:]
    per_token = -log_probs * advantages.unsqueeze(1) + 0.1 * 0.5 * (log_probs - ref_log_probs) ** 2
    return (per_token * mask).sum() / mask.sum()


def both_without_the_first(logps, ref_logps, completion_mask):
    ratio = (ref_logps - logps)[:, 1:]
    k3 = torch.exp(ratio) - ratio - 1
    return (k3 * completion_mask[:, 1:]).sum(-1).mean()


def logits_and_tokens(logits, ref_logits, tokens, loss_mask):
    picked = [
        x[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
        for x in (logits, ref_logits)
    ]
    return (0.5 * (picked[0] - picked[1]) ** 2 * loss_mask[:, 1:]).sum(-1).mean()


def packed(logprobs: list[torch.Tensor], ref_logprobs: list[torch.Tensor], loss_masks: list[torch.Tensor]):
    log_prob, ref_log_prob, mask = torch.cat(logprobs), torch.cat(ref_logprobs), torch.cat(loss_masks)
    return (0.5 * (log_prob - ref_log_prob) ** 2 * mask).sum() / mask.sum()


def answer_by_answer(logps, ref_logps):
    kls = [(0.5 * (x - y) ** 2).mean() for x, y in zip(logps, ref_logps, strict=True)]
    return torch.stack(kls).mean()


def lists_of_a_batch(batch):
    total, count = 0.0, 0
    for log_prob, ref_log_prob in zip(batch["log_probs"], batch["ref_log_probs"], strict=True):
        total = total + (0.5 * (log_prob - ref_log_prob) ** 2).sum()
        count += log_prob.numel()
    return total / count


def samples_one_by_one(samples, kl_coef=0.1):
    losses = []
    for sample in samples:
        log_ratio = sample["log_probs"] - sample["ref_log_probs"]
        policy_loss = -sample["log_probs"] * sample["reward"]
        losses.append(((policy_loss + kl_coef * 0.5 * log_ratio**2) * sample["loss_mask"]).sum())
    return torch.stack(losses).mean()


def prompt_cut_off(logps, ref_logps, attention_mask, prompt_length):
    logps, ref_logps = logps[:, prompt_length - 1 : -1], ref_logps[:, prompt_length - 1 : -1]
    mask = attention_mask[:, prompt_length:]
    return (0.5 * (logps - ref_logps) ** 2 * mask).sum() / mask.sum()


def tis_with_k2(logp, old_logp, rollout_logp, ref_logp, advantages, loss_mask):
    weight = (old_logp - rollout_logp).exp().clamp(max=2.0).detach()
    per_token = -(logp - old_logp).exp() * advantages.unsqueeze(-1) + 0.1 * 0.5 * (logp - ref_logp) ** 2
    return (weight * per_token * loss_mask).sum(-1).mean()


def logits_that_are_kept(logits, ref_logits, completion_ids, completion_mask, logits_to_keep):
    def logps(x):
        x = x[:, -logits_to_keep - 1 : -1].log_softmax(-1)
        return x.gather(-1, completion_ids[:, -logits_to_keep:].unsqueeze(-1)).squeeze(-1)

    kl = 0.5 * (logps(logits) - logps(ref_logits)) ** 2
    return (kl * completion_mask[:, -logits_to_keep:]).sum() / completion_mask.sum()
