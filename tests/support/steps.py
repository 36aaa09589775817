"""Whole updates in the form in which trainers write them, with verdicts that were derived by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class HandStep(NamedTuple):
    """What a step maximizes on one prompt.

    Attributes:
        step: The loss.
        kind: One of `kl_companion.auditing.updates.effective.KINDS`.
        penalties: What its KL term is: {objective: weight}.
        large: Effective coefficient over the step's own in large groups, as a function of the standard
            deviation of the prompt's rewards.
        reward: What its rewards are of.
        options: Of `kl_companion.audit_update`.
        why: The derivation.
    """

    step: Callable[..., Any]
    kind: str
    penalties: dict[str, float]
    large: Callable[[float], float]
    reward: str = "expected_reward"
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    why: str = ""


def dapo_with_kl(
    log_probs, old_log_probs, ref_log_prob, token_level_rewards, response_mask, kl_loss_coef=0.05
):
    scores = token_level_rewards.sum(dim=-1)
    advantages = ((scores - scores.mean()) / (scores.std() + 1e-6)).unsqueeze(-1)
    ratio = torch.exp(log_probs - old_log_probs)
    losses = torch.maximum(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.28))
    kld = 0.5 * (log_probs - ref_log_prob).square()
    return ((losses + kl_loss_coef * kld) * response_mask).sum() / response_mask.sum()


def grpo_per_answer(
    per_token_logps, old_per_token_logps, ref_per_token_logps, advantages, completion_mask, beta=0.04
):
    ratio = torch.exp(per_token_logps - old_per_token_logps)
    a = advantages.unsqueeze(1)
    per_token_loss = -torch.min(ratio * a, torch.clamp(ratio, 0.8, 1.2) * a)
    d = ref_per_token_logps - per_token_logps
    per_token_loss = per_token_loss + beta * (torch.exp(d) - d - 1)
    return ((per_token_loss * completion_mask).sum(1) / completion_mask.sum(1)).mean()


def kl_in_reward(logprobs, ref_logprobs, rewards, mask, kl_coef=0.1):
    """The penalty is normalized with the rewards."""
    shaped = rewards - kl_coef * ((logprobs - ref_logprobs) * mask).sum(-1)
    advantages = (shaped - shaped.mean()) / (shaped.std() + 1e-8)
    return -(advantages.detach().unsqueeze(-1) * logprobs * mask).sum(-1).mean()


def rloo(logprobs, ref_logprobs, rewards, mask, kl_coef=0.1):
    """The penalty in the reward, and the mean of the others as a baseline."""
    shaped = rewards - kl_coef * ((logprobs - ref_logprobs) * mask).sum(-1).detach()
    baseline = (shaped.sum() - shaped) / (len(shaped) - 1)
    return -((shaped - baseline) * (logprobs * mask).sum(-1)).mean()


def after_normalizing(logprobs, ref_logprobs, rewards, mask, kl_coef=0.1):
    """The penalty of what follows is subtracted from normalized rewards."""
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    kl = (logprobs - ref_logprobs).detach() * mask
    to_go = kl.flip(-1).cumsum(-1).flip(-1)
    return -((advantages.unsqueeze(-1) - kl_coef * to_go) * logprobs * mask).sum(-1).mean()


def k1_in_loss(logprobs, ref_logprobs, rewards, mask, kl_coef=0.1):
    """K1 differentiated has no expected gradient."""
    advantages = rewards - rewards.mean()
    loss = -advantages.unsqueeze(-1) * logprobs + kl_coef * (logprobs - ref_logprobs)
    return (loss * mask).sum(-1).mean()


STEPS = {
    "dapo_with_kl": HandStep(
        dapo_with_kl,
        "beta times the spread of the rewards",
        {"token_reverse_kl": 1.0},
        lambda deviation: deviation,
        why="the ratio is 1 on fresh samples; rewards are divided by s, K2 is not: grad E[R] / s - b grad KL",
    ),
    "grpo_per_answer, advantages divided": HandStep(
        grpo_per_answer,
        "beta times the spread of the rewards",
        {"sampled_mean_reference_ratio": 1.0, "expected_inverse_length": 1.0},
        lambda deviation: deviation,
        reward="centered_reward_per_token",
        options={"advantage": "group_std"},
        why="E[(R - m)/s x mean score] and E[(1 - w) score / T]; the 1 is the gradient of -E[1/T]",
    ),
    "grpo_per_answer, advantages centered": HandStep(
        grpo_per_answer,
        "beta as written",
        {"sampled_mean_reference_ratio": 1.0, "expected_inverse_length": 1.0},
        lambda deviation: 1.0,
        reward="centered_reward_per_token",
        options={"advantage": "leave_one_out"},
    ),
    "kl_in_reward": HandStep(
        kl_in_reward,
        "beta in large groups only",
        {"sequence_reverse_kl": 1.0},
        lambda deviation: 1.0,
        why="(R - b D - mean) / s of both: numerator is grad E[R] - b grad KL, whatever s is",
    ),
    "rloo": HandStep(rloo, "beta as written", {"sequence_reverse_kl": 1.0}, lambda deviation: 1.0),
    "after_normalizing": HandStep(
        after_normalizing,
        "beta times the spread of the rewards",
        {"sequence_reverse_kl": 1.0},
        lambda deviation: deviation,
    ),
    "k1_in_loss": HandStep(k1_in_loss, "no KL that acts", {}, lambda deviation: 0.0),
}
