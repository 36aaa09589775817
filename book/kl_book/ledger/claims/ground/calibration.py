"""Groups of answers under a clipped surrogate: gradients of tokens, and coefficients with a KL in them.

A group is a row of indices of sequences; every token has its own ratio to the sampler.
"""

from __future__ import annotations

from functools import cache

import torch

from kl_book.ledger.claims.ground.groups import centered
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.updates import binary
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem

CLIP = 0.2


@cache
def stale() -> tuple[Problem, ...]:
    """Bandits of 3 and 6 arms and trees with rewards 0 and 1, sampled by an older policy."""
    return tuple(binary(p) for p in sampled_elsewhere() if len(p.sequences) > 2)


def token_ratios(problem: Problem) -> torch.Tensor:
    """Policy over sampler of every token, 1 outside the mask, [count, length]."""
    return (terms(problem).logp - problem.token_logp(problem.sampled_from)).exp()


def gates(ratio: torch.Tensor, coefficient: torch.Tensor) -> torch.Tensor:
    """1 where the clipped surrogate has a slope, 0 where it is flat."""
    closed = ((coefficient > 0) & (ratio > 1 + CLIP)) | ((coefficient < 0) & (ratio < 1 - CLIP))
    return (~closed).double()


def surrogate_slopes(problem: Problem, index: torch.Tensor, coefficient: torch.Tensor) -> torch.Tensor:
    """Derivative of minus the clipped surrogate in the log-prob of every token, [groups, n, length].

    By automatic differentiation; ``coefficient`` is one number per answer, [groups, n], and held fixed.
    """
    behavior = problem.token_logp(problem.sampled_from)[index]
    leaf = terms(problem).logp[index].clone().requires_grad_()
    ratio, a = (leaf - behavior).exp(), coefficient[..., None]
    loss = -torch.minimum(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a) * problem.completion_mask[index]
    (slopes,) = torch.autograd.grad(loss.sum(), leaf)
    return slopes


def k3_slopes(problem: Problem) -> torch.Tensor:
    """Derivative of k3 in the log-prob of every token, by automatic differentiation, [count, length]."""
    t = terms(problem)
    leaf = t.logp.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(get_estimator("k3").fn(leaf, t.ref_logp).sum(), leaf)
    return slopes * problem.completion_mask


def contributions(problem: Problem, index: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Slopes [groups, n, length] times the scores of the tokens, [groups, n, length, rows, vocab]."""
    return slopes[..., None, None] * terms(problem).scores[index]


def mean_drift(problem: Problem) -> torch.Tensor:
    """Exact KL of the next token, averaged over the tokens of every sequence, [count]."""
    return token_kls(problem, problem.logits).sum(-1) / problem.completion_mask.sum(-1)


def mean_log_ratio(problem: Problem) -> torch.Tensor:
    """The same of the sampled log-ratios."""
    return terms(problem).log_ratio.sum(-1) / problem.completion_mask.sum(-1)


def largest_deviation(rewards: torch.Tensor) -> torch.Tensor:
    """Largest distance of a reward from the mean of its group, [groups, 1]."""
    return centered(rewards, "mean").abs().amax(-1, keepdim=True)


def calibrated(rewards: torch.Tensor, drift: torch.Tensor, beta: float) -> torch.Tensor:
    """C = A / max|A| - beta (drift - its mean), 0 in groups of equal rewards, [groups, n]."""
    largest = largest_deviation(rewards)
    active = largest > 1e-12
    reward = centered(rewards, "mean") / largest.where(active, torch.ones_like(largest))
    return (reward - beta * centered(drift, "mean")).where(active, 0.0)
