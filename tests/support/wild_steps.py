"""Updates as trainers write them, with what they maximize derived by hand above each."""

import torch


# E[(R - 0.05 sum(logp - ref)) score] = grad (E[R] - 0.05 KL of whole answers): beta as written.
def reinforce_kl_reward(logp, ref_logp, rewards, mask, kl_coef=0.05):
    kl = ((logp - ref_logp) * mask).sum(-1).detach()
    total = rewards - kl_coef * kl
    return -(total * (logp * mask).sum(-1)).mean()


# advantages (R - m) / s; K3 differentiated on fresh tokens is the forward KL of the next token, undivided:
# grad E[R] / s - 0.04 grad KF, all over the mean length: beta times the spread.
def grpo_std_k3(logprobs, old_logprobs, ref_logprobs, rewards, mask, beta=0.04):
    adv = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    ratio = torch.exp(logprobs - old_logprobs)
    pg = -torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])
    d = ref_logprobs - logprobs
    k3 = d.exp() - d - 1
    return ((pg + beta * k3) * mask).sum() / mask.sum()


# leave-one-out of R - 0.1 K1 in groups of num_generations: unbiased, E[R] - 0.1 KL of whole answers.
def rloo_groups(logps, old_logps, ref_logps, rewards, mask, beta=0.1, num_generations=4):
    kl = ((logps - ref_logps) * mask).sum(-1).detach()
    r = (rewards - beta * kl).view(-1, num_generations)
    base = (r.sum(1, keepdim=True) - r) / (num_generations - 1)
    adv = (r - base).flatten()
    ratio = (((logps - old_logps) * mask).sum(-1)).exp()
    return -(ratio * adv).mean()


# Dr. GRPO: (R - m), sum over tokens / constant; (R - m) of a group of n is (1 - 1/n) of the leave-one-out,
# so that the gain is (1 - 1/n)/64, KL 0.1/64: beta as written in large groups, n/(n-1) beta in groups of n.
def dr_grpo(per_token_logps, old_per_token_logps, ref_per_token_logps, rewards, completion_mask, beta=0.1):
    adv = rewards - rewards.mean()
    ratio = (per_token_logps - old_per_token_logps).exp()
    loss = -torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])
    d = ref_per_token_logps - per_token_logps
    loss = loss + beta * (d.exp() - d - 1)
    return ((loss * completion_mask).sum(-1) / 64).mean()


# PPO (InstructGPT): per-token K1 in the reward, score on the last token, returns to go (gamma 1): each token
# is charged with the KL from it on; what is before it has no score: E[R] - kl_coef KL of whole answers.
def ppo_adaptive(logprobs, old_logprobs, ref_logprobs, scores, mask, kl_coef=0.2, cliprange=0.2):
    kl = (old_logprobs - ref_logprobs) * mask
    non_score = -kl_coef * kl
    last = mask.sum(-1).long() - 1
    token_rewards = non_score.clone()
    token_rewards[torch.arange(len(scores)), last] += scores
    returns = token_rewards.flip(-1).cumsum(-1).flip(-1)
    ratio = torch.exp(logprobs - old_logprobs)
    pg = torch.max(-returns * ratio, -returns * ratio.clamp(1 - cliprange, 1 + cliprange))
    return (pg * mask).sum(-1).mean()


# the minus is missing: the update lowers E[R] and KL: E[R] + 0.1 KL is minimized.
def minimized(logp, ref_logp, rewards, mask, beta=0.1):
    adv = rewards - rewards.mean()
    pg = (adv[:, None] * logp * mask).sum(-1).mean()
    return pg + beta * (0.5 * (logp - ref_logp) ** 2 * mask).sum(-1).mean()


# K2 subtracted in the loss: the KL is maximized.
def kl_maximized(logp, ref_logp, rewards, mask, beta=0.1):
    adv = rewards - rewards.mean()
    pg = -(adv[:, None] * logp * mask).sum(-1).mean()
    return pg - beta * (0.5 * (logp - ref_logp) ** 2 * mask).sum(-1).mean()


# the number stands in the text: b = 0.05 in large groups.
def no_beta(logp, ref_logp, rewards, mask):
    adv = rewards - rewards.mean()
    k2 = 0.5 * (logp - ref_logp) ** 2
    return (((-adv[:, None] * logp) + 0.05 * k2) * mask).sum(-1).mean()


# advantages are made elsewhere: says so, and with --advantage group_std beta times the spread.
def wants_advantages(logp, old_logp, ref_logp, advantages, mask, beta=0.04):
    ratio = (logp - old_logp).exp()
    pg = -torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
    kl = 0.5 * (logp - ref_logp) ** 2
    return ((pg + beta * kl) * mask).sum(-1).mean()


# no eps: a group of equal rewards is 0 / 0. In large groups grad E[R] / s - 0.1 grad KL.
def no_eps(logp, ref_logp, rewards, mask, beta=0.1):
    adv = (rewards - rewards.mean()) / rewards.std()
    return ((-adv[:, None] * logp + beta * 0.5 * (logp - ref_logp) ** 2) * mask).sum(-1).mean()


# the KL is a mean of a mean: / len once more, so that b = 0.1 / n in batches of n.
def kl_divided_again(logp, ref_logp, rewards, mask, beta=0.1):
    base = (rewards.sum() - rewards) / (len(rewards) - 1)
    pg = -((rewards - base)[:, None] * logp * mask).sum(-1).mean()
    kl = (0.5 * (logp - ref_logp) ** 2 * mask).sum(-1).mean() / len(rewards)
    return pg + beta * kl


# groups of four stand in the code; leave-one-out: E[R] - 0.1 KR exactly, in groups of 4 alone.
def groups_in_code(logp, ref_logp, rewards, mask, beta=0.1):
    g = rewards.view(-1, 4)
    adv = ((g * 4 - g.sum(1, keepdim=True)) / 3).flatten()
    return ((-adv[:, None] * logp + beta * 0.5 * (logp - ref_logp) ** 2) * mask).sum(-1).mean()


# K1 of padding enters the penalty of the answer: without it E[R] - 0.1 KL of whole answers.
def padding_in_kl(logp, ref_logp, rewards, mask, beta=0.1):
    kl = (logp - ref_logp).sum(-1).detach()
    total = rewards - beta * kl
    base = (total.sum() - total) / (len(total) - 1)
    return -((total - base) * (logp * mask).sum(-1)).mean()


# policy loss / tokens / rows, K2 / rows: in batches of n the rewards have 1 / (n mean length), the KL 1.
def rewards_divided_again(logp, ref_logp, rewards, mask, beta=0.1):
    pg = -((logp * rewards[:, None] * mask).sum(1) / mask.sum()).mean()
    return pg + beta * (0.5 * (logp - ref_logp) ** 2 * mask).sum(1).mean()


# exp(0) = 1 has no gradient: the rewards do not act; K3 differentiated on fresh samples is the forward KL.
def constant_ratio(logp, ref_logp, rewards, mask, beta=0.1):
    ratio = (logp - logp).exp()
    d = ref_logp - logp
    return ((-ratio * rewards[:, None] + beta * (d.exp() - d - 1)) * mask).sum(-1).mean()


# the rewards act by their square: no objective known here, and no KL.
def squared_rewards(logp, rewards, mask):
    adv = (rewards - rewards.mean()) ** 2
    return -(adv[:, None] * logp * mask).sum(-1).mean()


# the KL is a sum over the batch and the policy loss a mean: b = n beta in batches of n.
def kl_summed(logp, ref_logp, rewards, mask, beta=0.1):
    base = (rewards.sum() - rewards) / (len(rewards) - 1)
    pg = -(((rewards - base)[:, None] * logp) * mask).sum(-1).mean()
    return pg + beta * (0.5 * (logp - ref_logp) ** 2 * mask).sum()


# a ratio of answers whose padding is not masked: padding's scores enter, and no divergence.
def unmasked_ratio(logp, old_logp, rewards, mask):
    ratio = ((logp - old_logp).sum(-1) / mask.sum(-1)).exp()
    base = (rewards.sum() - rewards) / (len(rewards) - 1)
    return -(ratio * (rewards - base)).mean()


# the summand of a forward KL over the vocabulary, of the sampled token alone: -E[ref(a) score(a)] is left.
def weighted_by_reference(logp, ref_logp, rewards, mask, beta=0.1):
    adv = rewards - rewards.mean()
    pg = -(adv[:, None] * logp * mask).sum(-1).mean()
    kl = ((ref_logp.exp() * (ref_logp - logp)) * mask).sum(-1).mean()
    return pg + beta * kl


# the smaller of the losses where PPO takes the larger: at advantages below 0 nothing bounds the ratio.
def wrong_clip(logp, old_logp, ref_logp, rewards, mask, beta=0.1, eps=0.2):
    adv = rewards - rewards.mean()
    ratio = (logp - old_logp).exp()
    pg = torch.min(-ratio * adv[:, None], -ratio.clamp(1 - eps, 1 + eps) * adv[:, None])
    kl = 0.5 * (logp - ref_logp) ** 2
    return ((pg + beta * kl) * mask).sum(-1).mean()
