"""In the form of understand-r1-zero (Dr. GRPO): a constant in place of every length."""

import functools
from dataclasses import dataclass

import torch


@dataclass
class ZeroMathArgs:
    critic_type: str = "drgrpo"
    generate_max_length: int = 1000
    cliprange: float = 0.2
    beta: float = 0.1


def masked_mean(tensor, mask, axis=None):
    return (tensor * mask).sum(axis) / mask.sum(axis)


def masked_sum(tensor, mask, axis=None, constant_normalizer=1.0):
    return (tensor * mask).sum(axis) / constant_normalizer


class ZeroMathLearner:
    def __init__(self, args: ZeroMathArgs | None = None):
        self.args = args = args or ZeroMathArgs()
        self.masked_aggregator = (
            functools.partial(masked_sum, constant_normalizer=args.generate_max_length)
            if args.critic_type == "drgrpo"
            else masked_mean
        )

    def compute_monte_carlo_advantages(self, rewards):
        values = rewards.mean()
        advantages = rewards - values
        if self.args.critic_type == "grpo":
            advantages = advantages / (rewards.std() + 1e-8)
        return advantages

    def learning_step(self, logps, ref_logps, trajectory):
        advantages = self.compute_monte_carlo_advantages(trajectory["rewards"])[:, None]
        mask = trajectory["response_masks"]
        logprobs_diff = logps - trajectory["action_logprobs"]
        ratio = torch.exp(logprobs_diff)
        pg_losses = -advantages * ratio
        pg_losses2 = -advantages * torch.clamp(ratio, 1.0 - self.args.cliprange, 1.0 + self.args.cliprange)
        pg_loss = self.masked_aggregator(torch.max(pg_losses, pg_losses2), mask, axis=1).mean()
        infos = {"pg_loss": pg_loss.detach()}
        loss = pg_loss
        if self.args.beta > 0:
            log_ratio = (ref_logps - logps).clamp(-40.0, 40.0)
            kl3 = torch.expm1(log_ratio) - log_ratio
            infos["kl3"] = (kl3 * mask).detach().sum(1).mean()
            reg_loss = self.args.beta * self.masked_aggregator(kl3, mask, axis=1).mean()
            loss = pg_loss + reg_loss
        return loss, infos


def dr_grpo_kl(logps, ref_logps, response_masks, max_completion_length=256):
    per_token = (logps - ref_logps).square() / 2
    return (per_token * response_masks).sum() / (per_token.size(0) * max_completion_length)
