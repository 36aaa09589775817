"""In the form of MiniLLM: the teacher's log-ratio as a reward, returned to go, one step left out."""

import torch


class MiniLLMLoss:
    def __init__(self, gamma: float = 1.0, cliprange: float = 0.2, length_norm: bool = False):
        self.gamma = gamma
        self.cliprange = cliprange
        self.length_norm = length_norm

    def compute_advantages(self, student_log_probs, teacher_log_probs, mask):
        rewards = (teacher_log_probs - student_log_probs) * mask
        running = torch.zeros_like(rewards[:, 0])
        out = []
        for t in reversed(range(rewards.shape[1])):
            running = rewards[:, t] + self.gamma * running
            out.append(running)
        returns = torch.stack(out[::-1], dim=1)
        if self.length_norm:
            returns = returns / mask.flip(-1).cumsum(-1).flip(-1).clamp(min=1)
        return returns.detach()

    def pg_loss(self, logprobs, old_logprobs, teacher_logprobs, mask):
        advantages = self.compute_advantages(old_logprobs, teacher_logprobs, mask)
        ratio = torch.exp((logprobs - old_logprobs) * mask)
        loss1 = -advantages * ratio
        loss2 = -advantages * torch.clamp(ratio, 1.0 - self.cliprange, 1.0 + self.cliprange)
        return torch.sum(torch.max(loss1, loss2).float() * mask) / mask.shape[0]
