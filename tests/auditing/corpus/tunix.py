"""In the form of Tunix (there in JAX): a frozen example, the settings as an object."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class TrainExample:
    completion_ids: torch.Tensor
    completion_mask: torch.Tensor
    advantages: torch.Tensor
    ref_per_token_logps: torch.Tensor | None
    old_per_token_logps: torch.Tensor | None


@dataclasses.dataclass(slots=True, kw_only=True)
class GRPOConfig:
    beta: float = 0.04
    epsilon: float = 0.2
    kl_loss_mode: str = "kl"


def compute_kl_divergence(per_token_logps, ref_per_token_logps, method="low_var_kl"):
    difference = per_token_logps - ref_per_token_logps
    if method == "kl":
        return difference
    if method == "mse_kl":
        return 0.5 * difference**2
    return torch.exp(-difference) + difference - 1


def grpo_loss_fn(per_token_logps, train_example: TrainExample, algo_config: GRPOConfig | None = None):
    algo_config = algo_config or GRPOConfig()
    completion_mask = train_example.completion_mask
    old = train_example.old_per_token_logps
    old = per_token_logps.detach() if old is None else old
    advantages = train_example.advantages[:, None]
    coef_1 = torch.exp(per_token_logps - old)
    coef_2 = torch.clip(coef_1, 1 - algo_config.epsilon, 1 + algo_config.epsilon)
    per_token_loss = -torch.minimum(coef_1 * advantages, coef_2 * advantages)
    loss_denominator = torch.clip(completion_mask.sum(), min=1)
    aux = {"kl": 0.0}
    if algo_config.beta != 0.0:
        kl = compute_kl_divergence(
            per_token_logps, train_example.ref_per_token_logps, algo_config.kl_loss_mode
        )
        per_token_loss = per_token_loss + algo_config.beta * kl
        aux["kl"] = (kl * completion_mask).sum() / loss_denominator
    return (per_token_loss * completion_mask).sum() / loss_denominator, aux


def kl_of_each_answer(per_token_logps, ref_per_token_logps, completion_mask, beta=0.04):
    kl = compute_kl_divergence(per_token_logps, ref_per_token_logps, method="kl")
    return beta * ((kl * completion_mask).sum(dim=-1) / completion_mask.sum(dim=-1).clip(min=1)).mean()
