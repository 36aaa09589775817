"""In the form of home-made trainers: a detach, or an argument, in the wrong place."""

import torch


def k3_detached_in_the_linear_term(policy_logprobs, ref_logprobs, mask):
    kl = torch.exp(ref_logprobs - policy_logprobs) - (ref_logprobs - policy_logprobs.detach()) - 1
    return (kl * mask).sum(dim=1).mean()


def k3_detached_in_the_ratio(policy_logprobs, ref_logprobs, mask):
    ratio = torch.exp(ref_logprobs - policy_logprobs).detach()
    kl = ratio - (ref_logprobs - policy_logprobs) - 1
    return (kl * mask).sum(dim=1).mean()


def grpo_with_frozen_policy_in_kl(policy_logprobs, ref_logprobs, advantages, mask, beta=0.04):
    ratio = torch.exp(policy_logprobs - policy_logprobs.detach())
    diff = ref_logprobs - policy_logprobs.detach()
    kl = torch.exp(diff) - diff - 1
    return ((-ratio * advantages.unsqueeze(-1) + beta * kl) * mask).sum(dim=1).mean()


def kl_to_sampler(policy_logprobs, old_logprobs, mask):
    diff = old_logprobs - policy_logprobs
    return ((torch.exp(diff) - diff - 1) * mask).sum() / mask.sum()


def k1_of_the_whole_answer(policy_logprobs, ref_logprobs, mask):
    return ((policy_logprobs - ref_logprobs) * mask).sum(dim=1).mean()


def ratio_times_detached_k3(policy_logprobs, old_logprobs, ref_logprobs, mask):
    ratio = torch.exp(policy_logprobs - old_logprobs)
    diff = ref_logprobs - policy_logprobs
    return (ratio * (torch.exp(diff) - diff - 1).detach() * mask).sum() / mask.sum()
