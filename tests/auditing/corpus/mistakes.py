"""In the form of home-made trainers: a detach, or an argument, in the wrong place."""

import torch

from tests.support.corpus import Hand


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


VERDICTS = {
    "k3_detached_in_the_linear_term": Hand(
        fresh={"token_forward_kl": 1.0},
        stale={"behavior_reference_ratio": 1.0},
        why="-w score; the 1 that is lost is a constant, which matters on stale samples only.",
    ),
    "k3_detached_in_the_ratio": Hand(
        fresh={},
        stale={"behavior_log_likelihood": 1.0},
        why="the linear term is K1, whose gradient has no reference in it.",
    ),
    "grpo_with_frozen_policy_in_kl": Hand(
        fresh={"expected_reward": -1.0},
        stale={"behavior_reward": -1.0},
        why="the KL has no gradient at all. Stale: REINFORCE without a ratio.",
    ),
    "kl_to_sampler": Hand(
        fresh={},
        stale=None,
        per="tokens",
        why="the KL is to the sampler, not to the reference: zero where both agree, (1 - mu/pi) score else.",
    ),
    "k1_of_the_whole_answer": Hand(
        fresh={},
        stale={"behavior_log_likelihood": 1.0},
        why="K1 of sequences differentiated: the score.",
    ),
    "ratio_times_detached_k3": Hand(
        fresh={"token_reverse_kl": 1.0, "token_forward_kl": -1.0},
        stale={"token_reverse_kl": 1.0, "token_forward_kl": -1.0},
        per="tokens",
        why="K3 as an advantage: sg(K3) score is k1 score less (1 - w) score.",
    ),
}
