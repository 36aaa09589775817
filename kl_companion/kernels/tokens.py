"""Log-probs of given tokens and the entropy of rows: the one definition, run eagerly or compiled.

`token_sums` reads a row, `token_gradient` reads it again; what belongs to single tokens is worked out beside
them, on [rows, k]. What cancels is written so that it does not: the normalizer is 1 plus the sum over all
tokens but the likeliest, so that the log-prob of a token near certainty is -log1p(rest) and its gradient that
rest.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kl_companion.divergences.inline import exp, largest
from kl_companion.kernels.lanes import LOWEST, added, cooled, finite, load_lanes, past_cap, store
from kl_companion.kernels.row_numbers import less_one, shares


class LogProbNumbers(NamedTuple):
    """What log-probs, entropies and gradients of a block need, [rows] each."""

    peak: torch.Tensor  # the largest logit
    rest: torch.Tensor  # sum of exp(x - peak), less 1
    surprise: torch.Tensor | None  # E_P of x - peak over the temperature, where the entropy is wanted


def token_sums(
    raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    *,
    dtype: torch.dtype,
    entropy: bool,
) -> tuple[torch.Tensor, ...]:
    """peak, the sums of exp(x - peak) of what is below it and of the rest; with entropy that of surprises.

    raw is [pieces, length].
    """
    lanes = load_lanes(raw, dtype, cap)
    peak = largest(lanes)
    top = finite(peak).unsqueeze(-1)
    sums = []
    for x in lanes:
        scaled = cooled(x - top, cool)
        e, below = exp(scaled), scaled < 0
        parts = torch.where(below, e, 0.0).sum(-1), torch.where(below, 0.0, e).sum(-1)
        sums.append((*parts, torch.where(below, e * finite(scaled), 0.0).sum(-1)) if entropy else parts)
    return peak, *map(added, zip(*sums, strict=True))


def token_numbers(sums: tuple[torch.Tensor, ...], cool: torch.Tensor | None) -> LogProbNumbers:
    """From `token_sums`, [rows, pieces]."""
    peak, below, at, *surprise = sums
    dtype = peak.dtype
    top, share = shares(peak, cool)
    rest = torch.where(top > LOWEST, less_one(below, at, peak, cool), torch.nan)
    if not surprise:
        return LogProbNumbers(top, rest.to(dtype), None)
    moved = cooled(peak - top.unsqueeze(-1), cool)
    total = (share * (surprise[0] + moved * (below + at))).sum(-1)
    return LogProbNumbers(top, rest.to(dtype), (total / (1 + rest)).to(dtype))


def token_gradient(
    raw: torch.Tensor,
    cool: torch.Tensor | None,
    cap: torch.Tensor | None,
    peak: torch.Tensor,
    factor: torch.Tensor,
    by_surprise: torch.Tensor | None,
    out: torch.Tensor | None,
    *,
    dtype: torch.dtype,
) -> None:
    """Write exp(x - peak) (factor + by_surprise (x - peak)) to ``out``, or over ``raw``."""
    found = []
    for x in load_lanes(raw, dtype, cap):
        scaled = cooled(x - peak.unsqueeze(-1), cool)
        weight = factor.unsqueeze(-1)
        if by_surprise is not None:
            weight = weight + by_surprise.unsqueeze(-1) * finite(scaled)
        found.append(past_cap(exp(scaled) * weight, x, cap))
    store(raw if out is None else out, found)


def log_probs(loaded: torch.Tensor, numbers: LogProbNumbers, cool: torch.Tensor | None) -> torch.Tensor:
    """Log-probs of tokens from their logits, [rows, k]."""
    return cooled(loaded - numbers.peak.unsqueeze(-1), cool) - numbers.rest.log1p().unsqueeze(-1)


def token_entries(
    loaded: torch.Tensor,
    numbers: LogProbNumbers,
    cool: torch.Tensor | None,
    of_logp: torch.Tensor,
    of_entropy: torch.Tensor | None,
    ids: torch.Tensor,
) -> torch.Tensor:
    """The gradient's entries of the tokens themselves, [rows, k].

    Args:
        loaded: Their logits, [rows, k].
        numbers: Of the block.
        cool: One over the temperature.
        of_logp: Weights of the log-probs, [rows, k].
        of_entropy: Weights of the entropies, [rows], or None.
        ids: The tokens, [rows, k].
    """
    gathered = of_same(ids, of_logp)
    scaled = cooled(loaded - numbers.peak.unsqueeze(-1), cool)
    mass = (1 + numbers.rest).unsqueeze(-1)
    p, total = scaled.exp() / mass, of_logp.sum(-1, keepdim=True)
    at_peak = (gathered - total) + total * (numbers.rest.unsqueeze(-1) / mass)
    entries = torch.where(scaled == 0, at_peak, gathered - total * p)
    if of_entropy is not None and numbers.surprise is not None:
        entries = entries - (of_entropy * (scaled.T - numbers.surprise)).T * p
    return cooled(entries, cool)


def of_same(ids: torch.Tensor, of_logp: torch.Tensor) -> torch.Tensor:
    """Weights [rows, k], those of a token that a row names several times added up."""
    if ids.shape[1] == 1:
        return of_logp
    ranked, order = ids.sort(-1)
    group = torch.zeros_like(ids)
    group[:, 1:] = (ranked.diff(dim=-1) != 0).cumsum(-1)
    total = torch.zeros_like(of_logp).scatter_add_(-1, group, of_logp.gather(-1, order))
    return torch.empty_like(of_logp).scatter_(-1, order, total.gather(-1, group))


def gradient_numbers(
    numbers: LogProbNumbers,
    cool: torch.Tensor | None,
    of_logp: torch.Tensor,
    of_entropy: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """What `token_gradient` needs of rows, [rows] each: peak, factor, by_surprise."""
    scale, total = cooled(-1 / (1 + numbers.rest), cool), of_logp.sum(-1)
    if of_entropy is None or numbers.surprise is None:
        return numbers.peak, scale * total, None
    return numbers.peak, scale * (total - of_entropy * numbers.surprise), scale * of_entropy
