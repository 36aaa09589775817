"""Scores of an enumerated world: the gradient of every sequence, from one coefficient per token.

A loss that sees the policy only through the log-probs of sampled tokens has, for each sequence, the
gradient sum_t c_t s_t: a coefficient c_t = d loss / d logp_t times the score s_t of the token. The rows
of different prefixes are different parameters, so the scores of one sequence are orthogonal and every
moment is a sum over sequences and tokens: no gradient is ever formed per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_companion.checks import check_choice, check_no_nan
from kl_companion.estimators.registry import Estimator, sampled_estimator
from kl_companion.rollout import Rollout
from kl_companion.tabular.draws import SINGLE_PLACEMENTS, SinglePlacement
from kl_companion.tabular.worlds import NEVER, Problem

Terms = Callable[[Rollout], torch.Tensor]
EstimatorLike = str | Estimator | Terms


class World(NamedTuple):
    """An enumerated problem ready for moments: [..., count] and [..., count, length] tensors."""

    problem: Problem
    probability: torch.Tensor  # of being sampled, [..., count]
    logp: torch.Tensor  # of every token under the policy, [..., count, length]
    policy: torch.Tensor  # [..., rows, vocab]
    norm: torch.Tensor  # squared norm of the score of every token, [..., count, length]

    def gradient(self, coefficient: torch.Tensor, probability: torch.Tensor | None = None) -> torch.Tensor:
        """E[sum_t c_t s_t] for coefficients [..., count, length]; [..., rows, vocab]."""
        p = self.probability if probability is None else probability
        weight = (p.unsqueeze(-1) * coefficient * self.problem.completion_mask).flatten(-2)
        rows, vocab = self.policy.shape[-2:]
        index = (self.problem.rows * vocab + self.problem.sequences).flatten()
        chosen = weight.new_zeros(*weight.shape[:-1], rows * vocab).index_add(-1, index, weight)
        chosen = chosen.unflatten(-1, (rows, vocab))
        return chosen - chosen.sum(-1, keepdim=True) * self.policy

    def square(self, coefficient: torch.Tensor) -> torch.Tensor:
        """|sum_t c_t s_t|^2 of every sequence, [..., count]."""
        return (coefficient**2 * self.norm).sum(-1)

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """E[x] of [..., count] values."""
        return (self.probability * x).sum(-1)


def world(problem: Problem, logits: torch.Tensor | None = None) -> World:
    """Probabilities and scores of every sequence of a problem, at ``logits`` or at its own policy."""
    theta = (problem.logits if logits is None else logits).detach()
    logp, policy = problem.token_logp(theta), theta.softmax(-1)
    collision = policy.square().sum(-1)[..., problem.rows]
    norm = (1 - 2 * logp.exp() + collision) * problem.completion_mask
    return World(problem, problem.probabilities(theta), logp, policy, norm)


def coefficients(
    estimator: EstimatorLike, at: World, placement: SinglePlacement
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value of every sequence, [..., count], and d loss / d logp of its tokens, [..., count, length]."""
    check_choice("placement", placement, SINGLE_PLACEMENTS)
    leaf = at.logp.clone().requires_grad_()
    ref_logp = at.problem.token_logp(at.problem.ref_logits)
    if isinstance(estimator, str | Estimator):
        entry = sampled_estimator(estimator)
        # a sequence that is never sampled may have no log-ratio
        x = entry.fn(*(y.sum(-1).where(at.probability > 0, 0.0) for y in (leaf, ref_logp)))
    else:
        x = _terms(estimator, at, leaf, ref_logp)
    possible = at.probability > 0
    values = x.detach().where(possible, 0.0)
    check_no_nan("the estimate", values)
    if placement == "reward":
        return values, values.unsqueeze(-1) * at.problem.completion_mask
    (c,) = torch.autograd.grad(x.sum(), leaf)
    return values, c.where(possible.unsqueeze(-1), 0.0)


def _terms(terms: Terms, at: World, leaf: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """One term per sequence of a rollout that holds every sequence once; it has no logits."""
    p = at.problem
    length, copies = leaf.shape[-1], leaf.numel() // max(p.sequences.numel(), 1)
    behavior = at.logp if p.behavior_logits is None else p.token_logp(p.behavior_logits).clamp(min=NEVER)
    rollout = Rollout(
        p.sequences.repeat(copies, 1),
        p.completion_mask.repeat(copies, 1),
        leaf.reshape(-1, length),
        ref_logp.reshape(-1, length),
        behavior.reshape(-1, length),
        p.rewards.flatten(),
    )
    x = terms(rollout)
    if not isinstance(x, torch.Tensor) or x.shape != rollout.logp.shape[:1]:
        got = f"shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise ValueError(
            f"the estimator returned {got}, expected one term per sequence [{len(rollout.logp)}]"
        )
    if not x.requires_grad:
        x = x + 0 * leaf.reshape(-1, length).sum(-1)
    return x.reshape(leaf.shape[:-1])


def sample_gradients(at: World, coefficient: torch.Tensor) -> torch.Tensor:
    """sum_t c_t s_t of every sequence, [..., count, rows, vocab], from coefficients [..., count, length]."""
    c = coefficient * at.problem.completion_mask
    rows, vocab = at.policy.shape[-2:]
    index = (at.problem.rows * vocab + at.problem.sequences).expand_as(c)
    chosen = c.new_zeros(*c.shape[:-1], rows * vocab).scatter_add(-1, index, c).unflatten(-1, (rows, vocab))
    return chosen - chosen.sum(-1, keepdim=True) * at.policy.unsqueeze(-3)
