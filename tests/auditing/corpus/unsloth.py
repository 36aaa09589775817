"""In the form of unsloth-zoo: ``ref``, ``new``, ``old``, the switches in the keyword arguments."""

import torch


def grpo_compute_loss(
    ref, new, old, input_ids, mask, beta=0.001, advantages=None, epsilon_low=0.2, epsilon_high=0.2, **kwargs
):
    loss_type = kwargs.get("loss_type", "bnpo")
    use_bias_correction_kl = kwargs.get("use_bias_correction_kl", True)
    input_ids = input_ids.unsqueeze(-1)
    new = torch.gather(new, -1, input_ids).squeeze(-1) - torch.logsumexp(new, dim=-1)
    with torch.no_grad():
        if ref is not None:
            ref = torch.gather(ref, -1, input_ids).squeeze(-1) - torch.logsumexp(ref, dim=-1)
        if old is not None:
            old = torch.gather(old, -1, input_ids).squeeze(-1) - torch.logsumexp(old, dim=-1)
    coef_1 = torch.exp(new - (new.detach() if old is None else old))
    coef_2 = torch.clamp(coef_1, 1 - epsilon_low, 1 + epsilon_high)
    loss_1 = coef_1 * advantages.unsqueeze(1)
    loss_2 = coef_2 * advantages.unsqueeze(1)
    loss_i = -torch.min(loss_1, loss_2)
    kl_i = torch.zeros_like(loss_i)
    if beta != 0.0:
        difference = torch.clamp(ref - new, min=-20.0, max=20.0)
        kl_i = torch.exp(difference) - difference - 1.0
        if use_bias_correction_kl:
            kl_i = kl_i * coef_1
        kl_i = torch.clamp(kl_i, min=-10.0, max=10.0)
        loss_i = loss_i + beta * kl_i
    mask = mask.to(loss_i.dtype)
    n_mask_per_reward = mask.sum(1)
    if loss_type == "grpo":
        loss = ((loss_i * mask).sum(1) / n_mask_per_reward).mean()
    else:
        loss = (loss_i * mask).sum() / mask.sum()
    with torch.no_grad():
        mean_kl = ((kl_i * mask).sum(1) / n_mask_per_reward).mean()
    return loss, n_mask_per_reward.mean(), mean_kl
