"""In the form of DAPO's code: a mean over tokens, clip higher, rewards divided by their deviation."""

import torch


class DAPOLoss(torch.nn.Module):
    def __init__(self, eps_low: float = 0.2, eps_high: float = 0.28, normalize: bool = True):
        super().__init__()
        self.eps_low = eps_low
        self.eps_high = eps_high
        self.normalize = normalize

    def forward(self, log_probs, old_log_probs, rewards, response_mask):
        adv = rewards - rewards.mean()
        if self.normalize:
            adv = adv / (rewards.std(unbiased=False) + 1e-6)
        adv = adv[:, None].expand_as(log_probs)
        ratio = (log_probs - old_log_probs).exp()
        clipped = ratio.clamp(1 - self.eps_low, 1 + self.eps_high)
        loss = -torch.minimum(ratio * adv, clipped * adv)
        loss = loss.masked_fill(response_mask == 0, 0)
        return loss.sum() / response_mask.sum()
