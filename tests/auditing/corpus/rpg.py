"""In the form of Regularized Policy Gradient's code: penalties in w = policy/reference, and hard clips."""

import torch


def token_mean(loss_mat, loss_mask):
    return (loss_mat * loss_mask).sum() / loss_mask.sum()


def rpg_fkl(logprob: torch.FloatTensor, ref_logprob: torch.FloatTensor) -> torch.Tensor:
    return (-logprob + ref_logprob).contiguous()


def rpg_ufkl(logprob: torch.FloatTensor, ref_logprob: torch.FloatTensor) -> torch.Tensor:
    log_ratio = logprob - ref_logprob
    w = torch.exp(log_ratio)
    return torch.clamp((w - log_ratio - 1).contiguous(), min=-10, max=10)


def rpg_urkl(logprob: torch.FloatTensor, ref_logprob: torch.FloatTensor) -> torch.Tensor:
    log_ratio = logprob - ref_logprob
    w = torch.exp(log_ratio)
    return torch.clamp((w * (log_ratio - 1) + 1).contiguous(), min=-10, max=10)


def compute_policy_loss_reinforce(
    old_log_prob,
    log_prob,
    advantages,
    response_mask,
    kl_type="rpg_rf_rkl",
    kl_loss_coef=1e-4,
    clip_ratio_low=0.2,
    clip_ratio_high=0.28,
):
    negative_approx_kl = log_prob - old_log_prob
    w = torch.exp(negative_approx_kl)
    w_ = torch.clamp(w, 1 - clip_ratio_low, 1 + clip_ratio_high)
    if kl_type == "rpg_rf_rkl":
        kl_term = -kl_loss_coef * w_ * (torch.log(w_) + 1)
    elif kl_type == "rpg_rf_ufkl":
        kl_term = kl_loss_coef * (1 - w_)
    else:
        raise NotImplementedError(kl_type)
    A = (advantages * w_ + kl_term).detach()
    pg_loss = token_mean(-A * log_prob, response_mask)
    return (
        pg_loss,
        token_mean((w != w_).float(), response_mask),
        token_mean(-negative_approx_kl, response_mask),
    )


def rpg_reference_advantage(log_prob, ref_log_prob, response_mask, kl_loss_coef=1e-4):
    log_ratio = (log_prob - ref_log_prob).detach()
    weight = torch.clamp(log_ratio.exp() * (log_ratio + 1), min=-10, max=10)
    return kl_loss_coef * token_mean(weight * log_prob, response_mask)
