"""In the form of ms-swift: the penalty in the reward, before the rewards are divided by their deviation."""

from typing import Any

import torch

from tests.support.corpus import Hand


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


VERDICTS = {
    "k3": Hand(
        fresh={"token_forward_kl": 1.0},
        stale={"behavior_log_likelihood": 1.0, "behavior_reference_ratio": 1.0},
        clamped=True,
        why="K3 differentiated, where the clamp is not reached.",
    ),
    "GRPOTrainer._compute_loss_kl_in_reward": Hand(
        fresh={"expected_reward": -1.0, "sequence_reverse_kl": 0.04},
        stale=None,
        per="varies",
        why="reward and penalty are divided by one standard deviation (and the number of tokens).",
    ),
    "reinforce_kl_loss": Hand(
        fresh={"expected_reward": -1.0, "token_forward_kl": 0.04},
        stale={"behavior_reward": -1.0, "behavior_log_likelihood": None, "behavior_reference_ratio": 0.04},
        clamped=True,
        why="a baseline from the batch is a constant; K3 differentiated. Stale: the baseline stays.",
    ),
}
