"""In the form of ms-swift: the penalty in the reward, before the rewards are divided by their deviation."""

from typing import Any

import torch


def k3(per_token_logps, ref_per_token_logps):
    delta = ref_per_token_logps - per_token_logps
    return torch.clamp(torch.exp(delta) - delta - 1, min=-10, max=10)


class GRPOTrainer:
    def __init__(self, beta: float = 0.04, epsilon: float = 0.2, scale_rewards: str = "group"):
        self.beta = beta
        self.epsilon = epsilon
        self.scale_rewards = scale_rewards

    def _compute_advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        advantages = rewards - rewards.mean()
        return advantages / (rewards.std() + 1e-4) if self.scale_rewards == "group" else advantages

    def _compute_loss_kl_in_reward(self, per_token_logps: torch.Tensor, inputs: dict[str, Any]):
        completion_mask = inputs["completion_mask"].bool()
        old_per_token_logps = inputs["old_per_token_logps"]
        with torch.no_grad():
            kl = ((old_per_token_logps - inputs["ref_per_token_logps"]) * completion_mask).sum(-1)
            advantages = self._compute_advantages(inputs["rewards"] - self.beta * kl)
        ratio = torch.exp(per_token_logps - old_per_token_logps)
        clipped = torch.clamp(ratio, 1 - self.epsilon, 1 + self.epsilon)
        loss = -torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
        return loss[completion_mask].sum() / completion_mask.sum()


def reinforce_kl_loss(
    per_token_logps: torch.Tensor,
    ref_per_token_logps: torch.Tensor,
    completion_mask: torch.Tensor,
    rewards: torch.Tensor,
    beta: float = 0.04,
) -> torch.Tensor:
    advantages = rewards - rewards.mean()
    policy_loss = -advantages.unsqueeze(-1) * per_token_logps
    loss = policy_loss + beta * k3(per_token_logps, ref_per_token_logps)
    return (loss * completion_mask).sum(-1).mean()
