"""In the form of verl: penalties by name, policy losses with (old, new) order, aggregation by name."""

from dataclasses import dataclass

import torch


def masked_sum(values, mask, axis=None):
    return torch.where(mask.bool(), values, 0.0).sum(axis)


def masked_mean(values, mask, axis=None):
    return masked_sum(values, mask, axis) / mask.sum(axis)


def agg_loss(loss_mat: torch.Tensor, loss_mask: torch.Tensor, loss_agg_mode: str) -> torch.Tensor:
    if loss_agg_mode == "token-mean":
        return masked_sum(loss_mat, loss_mask) / loss_mask.sum()
    if loss_agg_mode == "seq-mean-token-sum":
        return (loss_mat * loss_mask).sum(dim=-1).mean()
    if loss_agg_mode == "seq-mean-token-mean":
        each = (loss_mat * loss_mask).sum(dim=-1) / (loss_mask.sum(dim=-1) + 1e-8)
        return each.mean()
    raise ValueError(f"Invalid loss_agg_mode: {loss_agg_mode}")


def kl_penalty_forward(logprob: torch.FloatTensor, ref_logprob: torch.FloatTensor, kl_penalty="low_var_kl"):
    if kl_penalty in ("kl", "k1"):
        return logprob - ref_logprob
    if kl_penalty == "abs":
        return (logprob - ref_logprob).abs()
    if kl_penalty in ("mse", "k2"):
        return 0.5 * (logprob - ref_logprob).square()
    if kl_penalty in ("low_var_kl", "k3"):
        kl = torch.clamp(ref_logprob - logprob, min=-20, max=20)
        kld = (torch.exp(kl) - kl - 1).contiguous()
        return torch.clamp(kld, min=-10, max=10)
    raise NotImplementedError


def kl_penalty(logprob: torch.FloatTensor, ref_logprob: torch.FloatTensor, kl_penalty="k3+"):
    forward = kl_penalty_forward(logprob, ref_logprob, kl_penalty.rstrip("+"))
    if not kl_penalty.endswith("+"):
        return forward
    backward = kl_penalty_forward(logprob, ref_logprob, "k2")
    return backward - backward.detach() + forward.detach()


def abs_kl_loss(log_prob, ref_log_prob, response_mask, loss_agg_mode="token-mean", kl_loss_coef=0.001):
    kld = kl_penalty_forward(log_prob, ref_log_prob, "abs")
    return kl_loss_coef * agg_loss(kld, response_mask, loss_agg_mode)


def low_var_kl_of_each_answer(log_prob, ref_log_prob, response_mask, loss_agg_mode="seq-mean-token-mean"):
    kld = kl_penalty(log_prob, ref_log_prob, kl_penalty="low_var_kl")
    return agg_loss(loss_mat=kld, loss_mask=response_mask, loss_agg_mode=loss_agg_mode)


@dataclass
class ActorConfig:
    clip_ratio: float = 0.2
    clip_ratio_low: float | None = None
    clip_ratio_high: float | None = None
    clip_ratio_c: float = 3.0
    use_kl_loss: bool = True
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    loss_agg_mode: str = "token-mean"


def compute_policy_loss_vanilla(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: ActorConfig | None = None,
):
    config = config or ActorConfig()
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    negative_approx_kl = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    ratio = torch.exp(negative_approx_kl)
    pg_losses1 = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1 - low, 1 + high)
    clip_pg_losses1 = torch.maximum(pg_losses1, pg_losses2)
    pg_losses3 = -advantages * config.clip_ratio_c
    clip_pg_losses2 = torch.min(pg_losses3, clip_pg_losses1)
    pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)
    pg_loss = agg_loss(pg_losses, response_mask, loss_agg_mode)
    clipfrac = masked_mean(torch.gt(pg_losses2, pg_losses1).float(), response_mask)
    return pg_loss, {"actor/pg_clipfrac": clipfrac.detach().item()}


def ppo_loss(config: ActorConfig, model_output: dict, data: dict):
    log_prob = model_output["log_probs"]
    response_mask = data["response_mask"].to(torch.bool)
    policy_loss, metrics = compute_policy_loss_vanilla(
        old_log_prob=data["old_log_probs"],
        log_prob=log_prob,
        advantages=data["advantages"],
        response_mask=response_mask,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
    )
    if config.use_kl_loss:
        kld = kl_penalty(log_prob, data["ref_log_prob"], config.kl_loss_type)
        kl_loss = agg_loss(kld, response_mask, config.loss_agg_mode)
        policy_loss += kl_loss * config.kl_loss_coef
        metrics["kl_loss"] = kl_loss.detach().item()
    return policy_loss, metrics


def compute_policy_loss_gspo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    clip_ratio_low: float = 3e-4,
    clip_ratio_high: float = 4e-4,
):
    lengths = response_mask.sum(-1).clamp(min=1)
    mean_log_ratio = ((log_prob - old_log_prob) * response_mask).sum(-1) / lengths
    log_ratio = log_prob - log_prob.detach() + mean_log_ratio.detach().unsqueeze(-1)
    ratio = torch.exp(torch.clamp(log_ratio, max=10.0))
    losses = torch.maximum(
        -advantages * ratio, -advantages * torch.clamp(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high)
    )
    return agg_loss(losses, response_mask, loss_agg_mode)


def reward_with_kl_loss(
    log_probs, old_log_probs, ref_log_prob, token_level_scores, response_mask, kl_ctrl=0.001
):
    kld = kl_penalty_forward(old_log_probs, ref_log_prob, "kl") * response_mask
    token_level_rewards = token_level_scores - kl_ctrl * kld
    with torch.no_grad():
        outcome = token_level_rewards.sum(dim=-1)
        advantages = (outcome - outcome.mean()).unsqueeze(-1) * response_mask
    ratio = torch.exp(log_probs - old_log_probs)
    return agg_loss(-advantages * ratio, response_mask, "token-mean")
