"""In the form of EMA-PG's code: straight-through estimators and a top-k head with a sampled rest."""

import torch


def k3plusplus(logprob, ref_logprob):
    kl = ref_logprob - logprob
    value = torch.clamp(torch.exp(kl) - kl - 1, min=-10, max=10)
    return value * torch.exp(logprob - logprob.detach())


def k4(logprob, ref_logprob):
    return (logprob - ref_logprob).detach() * torch.exp(logprob - logprob.detach())


def k5(logprob, ref_logprob):
    log_w = ref_logprob - logprob
    return log_w.exp().detach() * log_w + (logprob - logprob.detach())


def memory_efficient_kl(
    actor_logits, ref_logits, sampled_indices, old_log_prob, response_mask, k=2, use_tail_sampling=True
):
    actor = actor_logits - torch.logsumexp(actor_logits, dim=-1, keepdim=True)
    ref = ref_logits - torch.logsumexp(ref_logits, dim=-1, keepdim=True)
    top = actor.detach().topk(k, dim=-1).indices
    head, ref_head = actor.gather(-1, top), ref.gather(-1, top)
    loss = (head.exp() * (head - ref_head)).sum(-1)
    if use_tail_sampling:
        log_prob = actor.gather(-1, sampled_indices.unsqueeze(-1)).squeeze(-1)
        ref_log_prob = ref.gather(-1, sampled_indices.unsqueeze(-1)).squeeze(-1)
        in_tail = (top != sampled_indices.unsqueeze(-1)).all(dim=-1)
        kl_iw = torch.exp(log_prob - old_log_prob).detach()
        tail = (log_prob - ref_log_prob).detach() * torch.exp(log_prob - log_prob.detach())
        loss = loss + kl_iw * torch.where(in_tail, tail, 0.0)
    return (loss * response_mask).sum(-1).mean()
