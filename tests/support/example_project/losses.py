"""The losses of a small trainer, as trainers write them."""

import torch


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens that the policy wrote."""
    return (x * mask).sum() / mask.sum()


def k2_penalty(logps: torch.Tensor, ref_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """One half of the squared log-ratio."""
    return masked_mean(0.5 * (logps - ref_logps) ** 2, mask)


def k3_penalty(logps: torch.Tensor, ref_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Schulman's k3."""
    log_ratio = ref_logps - logps
    return masked_mean(log_ratio.exp() - 1 - log_ratio, mask)


class GRPOLoss:
    """The clipped surrogate with a KL term beside it."""

    def __init__(self, beta: float = 0.04, epsilon: float = 0.2, kl: str = "k3") -> None:
        self.beta, self.epsilon = beta, epsilon
        self.kl = {"k2": k2_penalty, "k3": k3_penalty}[kl]

    def __call__(
        self,
        logps: torch.Tensor,
        old_logps: torch.Tensor,
        ref_logps: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """The loss of one batch."""
        ratio = (logps - old_logps).exp()
        clipped = ratio.clamp(1 - self.epsilon, 1 + self.epsilon)
        surrogate = torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
        return -masked_mean(surrogate, mask) + self.beta * self.kl(logps, ref_logps, mask)
