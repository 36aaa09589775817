"""Log-probs of given tokens and the entropy of a few rows of raw logits, with their gradients, in the cache.

What cancels is written so that it does not: where one token has more than half of the probability, its
log-prob is log1p(-rest) and the gradient of it the rest, with the rest summed over the other tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kl_companion.kernels.blocks import softmax_at


class TokenRows(NamedTuple):
    """A block after its softmax; ``surprise`` is log(p/p_max) centered under p, or None without entropy."""

    p: torch.Tensor  # [rows, vocab]
    logp: torch.Tensor  # [rows, k]
    entropy: torch.Tensor | None  # [rows]
    surprise: torch.Tensor | None  # [rows, vocab]
    peak: torch.Tensor  # [rows, 1], the likeliest token where one has more than half
    peaked: torch.Tensor  # [rows], whether one has
    rest: torch.Tensor  # [rows], probability of all tokens but the peak


def token_rows(
    x: torch.Tensor,
    tokens: torch.Tensor,
    scratch: torch.Tensor,
    temperature: float = 1.0,
    *,
    entropy: bool = False,
) -> TokenRows:
    """Log-probs of tokens [rows, k] under logits [rows, vocab], in scratch [>= 3, rows, vocab]."""
    p = softmax_at(x, temperature, scratch[0])
    p.div_(p.sum(-1, keepdim=True))
    top, p_top = x.amax(-1, keepdim=True), p.amax(-1)
    chosen, which = p.gather(-1, tokens).max(-1, keepdim=True)
    peak = tokens.gather(-1, which)
    peaked = p_top > 0.5
    missed = peaked & (chosen.squeeze(-1) <= 0.5)
    if missed.any():
        peak[missed] = p[missed].argmax(-1, keepdim=True)
    held = p.gather(-1, peak)
    rest = p.scatter_(-1, peak, 0.0).sum(-1)
    p.scatter_(-1, peak, held)
    log_top = torch.where(peaked, torch.log1p(-rest), p_top.log())
    logp = (x.gather(-1, tokens) - top) / temperature + log_top.unsqueeze(-1)
    if not entropy:
        return TokenRows(p, logp, None, None, peak, peaked, rest)
    surprise = torch.sub(x, top, out=scratch[1])
    if temperature != 1.0:
        surprise.div_(temperature)
    mean = torch.mul(p, surprise, out=scratch[2]).sum(-1)
    if mean.isnan().any():  # 0 times -inf of masked tokens
        surprise.clamp_(min=torch.finfo(surprise.dtype).min / 4)
        mean = torch.mul(p, surprise, out=scratch[2]).sum(-1)
    surprise.sub_(mean.unsqueeze(-1))
    return TokenRows(p, logp, -(log_top + mean), surprise, peak, peaked, rest)


def token_gradient(
    rows: TokenRows, tokens: torch.Tensor, loss_weight: torch.Tensor, of_entropy: torch.Tensor | None = None
) -> torch.Tensor:
    """loss_weight [rows, k] times the gradient of the log-probs, plus of_entropy [rows] times the entropy's.

    Overwrites the block's p and surprise; returns [rows, vocab].
    """
    total = loss_weight.sum(-1, keepdim=True)
    of_peak = loss_weight.where(tokens == rows.peak, 0.0).sum(-1, keepdim=True)
    at_peak = (of_peak - total) + total * rows.rest.unsqueeze(-1)
    out = rows.p
    if of_entropy is not None and rows.surprise is not None:
        curved = rows.surprise.mul_(out).mul_(-of_entropy.unsqueeze(-1))
        at_peak = at_peak + curved.gather(-1, rows.peak)
        out = curved.sub_(out.mul_(total))
    else:
        out.mul_(-total)
    out.scatter_add_(-1, tokens, loss_weight)
    at_peak = torch.where(rows.peaked.unsqueeze(-1), at_peak, out.gather(-1, rows.peak))
    return out.scatter_(-1, rows.peak, at_peak)
