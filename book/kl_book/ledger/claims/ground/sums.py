"""Explicit sums over all sequences of a world: means, variances, exact values and gradients.

Scores come from automatic differentiation, one per token. Of the package only the worlds and the formulas of
the estimators take part: no moments, no losses, no audit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

import torch

from kl_companion.estimators import get_estimator
from kl_companion.rollout import Rollout
from kl_companion.tabular import Problem

Formula = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Terms(NamedTuple):
    """Everything that can be sampled from a world, written out.

    Attributes:
        p: Probability of being sampled, [count].
        logp, ref_logp: Of every token, [count, length], 0 outside the mask.
        scores: Gradient of log pi of every token, [count, length, rows, vocab].
    """

    p: torch.Tensor
    logp: torch.Tensor
    ref_logp: torch.Tensor
    scores: torch.Tensor

    @property
    def log_ratio(self) -> torch.Tensor:
        """log pi - log pi_ref of every token, [count, length]."""
        return self.logp - self.ref_logp

    @property
    def score(self) -> torch.Tensor:
        """Gradient of log pi of whole sequences, [count, rows, vocab]."""
        return self.scores.sum(1)


@lru_cache(maxsize=1024)
def terms(problem: Problem) -> Terms:
    """The sequences of one world with their probabilities, log-probs and scores."""
    theta = problem.logits.detach()
    logp, ref_logp = problem.token_logp(theta), problem.token_logp(problem.ref_logits)
    scores = torch.autograd.functional.jacobian(problem.token_logp, theta, vectorize=True)
    return Terms(problem.token_logp(problem.sampled_from).sum(-1).exp(), logp, ref_logp, scores)


def mean(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """E[x] over the first axis."""
    return torch.tensordot(p, x, dims=1)


def field(c: torch.Tensor, problem: Problem) -> torch.Tensor:
    """E[c s] for a coefficient [count] of the score of each sequence, [rows, vocab]."""
    t = terms(problem)
    return mean(t.p * c, t.score)


def log_ratio(problem: Problem) -> torch.Tensor:
    """l = log pi - log pi_ref of whole sequences, [count]."""
    return terms(problem).log_ratio.sum(-1)


def variance(p: torch.Tensor, x: torch.Tensor) -> float:
    """Variance of x, summed over all axes but the first."""
    return float((p * (x - mean(p, x)).reshape(len(p), -1).square().sum(-1)).sum())


def values(formula: Formula, problem: Problem) -> torch.Tensor:
    """Estimates from whole sequences, [count]; a registered name or a function of two log-probs."""
    fn = get_estimator(formula).fn if isinstance(formula, str) else formula
    t = terms(problem)
    return fn(t.logp.sum(-1), t.ref_logp.sum(-1)).detach()


def slopes(f: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    """Derivative of f, or of its sum where it is a tensor, in every entry of ``at``, and of its shape."""
    leaf = at.detach().clone().requires_grad_()
    (derivative,) = torch.autograd.grad(f(leaf).sum(), leaf)
    return derivative


def differentiated(formula: Formula, problem: Problem, *, per_token: bool = False) -> torch.Tensor:
    """Gradient of the estimate of every sequence, [count, rows, vocab]; ``per_token`` sums over tokens."""
    fn = get_estimator(formula).fn if isinstance(formula, str) else formula
    t = terms(problem)
    leaf = t.logp.clone().requires_grad_()
    x = fn(leaf, t.ref_logp) if per_token else fn(leaf.sum(-1), t.ref_logp.sum(-1))
    (c,) = torch.autograd.grad(x.sum(), leaf)
    return torch.einsum("it,itrv->irv", c, t.scores)


def reverse_kl(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """KL(pi || pi_ref) from the log-probs of all outcomes, over the last axis; 0 log 0 is 0."""
    p = logp.exp()
    return (p * (logp - ref_logp)).where(p > 0, 0.0).sum(-1)


def forward_kl(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """KL(pi_ref || pi) from the log-probs of all outcomes, over the last axis."""
    return reverse_kl(ref_logp, logp)


def half_square(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """E[k2] under the policy, from the log-probs of all sequences: an objective, to be differentiated."""
    return (logp.exp() * (logp - ref_logp) ** 2).sum() / 2


def exact(
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], problem: Problem
) -> tuple[float, torch.Tensor]:
    """Value and gradient of a function of the log-probs of all sequences under policy and reference."""
    theta = problem.logits.detach().clone().requires_grad_()
    value = objective(problem.token_logp(theta).sum(-1), problem.token_logp(problem.ref_logits).sum(-1))
    (gradient,) = torch.autograd.grad(value, theta)
    return value.item(), gradient


@cache
def kl_gradient(problem: Problem) -> torch.Tensor:
    """Gradient of the KL of whole sequences, policy from reference, [rows, vocab]."""
    return exact(reverse_kl, problem)[1]


def every_sequence(problem: Problem, logits: torch.Tensor | None = None) -> Rollout:
    """All sequences as one batch."""
    return problem.rollout(problem.logits if logits is None else logits)


def ref_ratio(problem: Problem) -> torch.Tensor:
    """w = pi*/pi of every token."""
    return (-terms(problem).log_ratio.sum(-1)).exp()
