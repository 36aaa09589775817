"""MiniRL and its two variants, written out: advantages, the mask of the clip, and stopped weights.

The sampler is ``behavior_logits``, the older policy of the training engine is ``ref_logits``.
"""

from __future__ import annotations

import torch

from kl_book.ledger.claims.ground.sums import mean, terms
from kl_book.ledger.claims.ground.surrogates import lengths, ratios
from kl_companion.tabular import Problem

LOW, HIGH = 0.2, 0.27  # margins of the clip in section 4.2


def advantages(problem: Problem) -> torch.Tensor:
    """R minus its mean under the sampler, [count]."""
    return problem.rewards - mean(terms(problem).p, problem.rewards)


def with_advantages(problem: Problem) -> Problem:
    """The same world with the advantages as rewards."""
    return problem._replace(rewards=advantages(problem))


def mask_of_the_clip(ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """M_t: 0 where a ratio has left the margins in the direction of its advantage, otherwise 1."""
    above, below = ratio > 1 + HIGH, ratio < 1 - LOW
    return (~((advantage > 0) & above | (advantage < 0) & below)).double()


def mask_of(problem: Problem) -> torch.Tensor:
    """M_t of every token, [count, length]."""
    ratio = terms(problem).log_ratio.exp()
    return mask_of_the_clip(ratio, advantages(problem)[:, None].expand_as(ratio))


def _objective(problem: Problem, theta: torch.Tensor, coefficient: torch.Tensor) -> torch.Tensor:
    """E_mu[sum over tokens of a constant coefficient [count, length] times the log-prob]."""
    return terms(problem).p @ (coefficient.detach() * problem.token_logp(theta)).sum(-1)


def minirl(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """Eq (7)."""
    weight = ratios(problem, theta) * advantages(problem)[:, None]
    return _objective(problem, theta, mask_of(problem) * weight)


def without_the_mask(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """Eq (7) with M_t = 1."""
    return _objective(problem, theta, ratios(problem, theta) * advantages(problem)[:, None])


def on_policy(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """Section 4.3: the weight is that of the older policy, a constant."""
    weight = (terms(problem).ref_logp - problem.token_logp(problem.sampled_from)).exp()
    return _objective(problem, theta, weight * advantages(problem)[:, None])


def divided_by_length(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """Section 4.3, with length normalization."""
    weight = (terms(problem).ref_logp - problem.token_logp(problem.sampled_from)).exp()
    return _objective(problem, theta, weight * (advantages(problem) / lengths(problem))[:, None])


def without_correction(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """Section 4.3, without the weight between the engines."""
    return _objective(problem, theta, advantages(problem)[:, None].expand_as(problem.completion_mask))


def at_the_rollout(problem: Problem) -> Problem:
    """The target is the older policy; the sampler still differs from it."""
    return problem._replace(logits=problem.ref_logits)


def one_engine(problem: Problem) -> Problem:
    """All three policies equal the sampler."""
    return at_the_rollout(problem._replace(ref_logits=problem.sampled_from))
