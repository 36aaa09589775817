"""Sums over worlds that another policy samples: ratios, and losses and rewards that carry them.

Explicit sums and automatic differentiation, per sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch

from kl_book.ledger.claims.ground.sums import Formula, log_ratio, mean, terms, values
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem


def share_of_cases(against: Iterable[bool]) -> float:
    """Share of the cases tried that are against a statement; infinite where none was tried."""
    found = [bool(case) for case in against]
    return sum(found) / len(found) if found else math.inf


def rho(problem: Problem) -> torch.Tensor:
    """Policy over sampler of whole sequences, [count]."""
    t = terms(problem)
    return t.logp.sum(-1).exp() / t.p


def times_score(coefficient: torch.Tensor, problem: Problem) -> torch.Tensor:
    """c rho s of every sequence, [count, rows, vocab]."""
    return (coefficient * rho(problem))[:, None, None] * terms(problem).score


def in_loss(
    formula: Formula, problem: Problem, ratio: Literal["attached", "detached"] = "attached"
) -> torch.Tensor:
    """Gradient of rho times the estimate, by automatic differentiation, [count, rows, vocab].

    The sampler is a constant; ``ratio`` says whether the policy in rho carries a gradient.
    """
    fn = get_estimator(formula).fn if isinstance(formula, str) else formula
    t = terms(problem)
    leaf = t.logp.sum(-1).clone().requires_grad_()
    weight = (leaf - t.p.log()).exp()
    x = (weight if ratio == "attached" else weight.detach()) * fn(leaf, t.ref_logp.sum(-1))
    (c,) = torch.autograd.grad(x.sum(), leaf)
    return c[:, None, None] * t.score


def in_reward(formula: Formula, problem: Problem) -> torch.Tensor:
    """Detached estimate times rho s of every sequence, [count, rows, vocab]."""
    return times_score(values(formula, problem), problem)


def average(x: torch.Tensor, problem: Problem) -> torch.Tensor:
    """E[x] under the sampler, [rows, vocab]."""
    return mean(terms(problem).p, x)


def half_square(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """E[k2] under the policy, from the log-probs of all sequences: an objective, to be differentiated."""
    return (logp.exp() * (logp - ref_logp) ** 2).sum() / 2


def covariance(x: torch.Tensor, problem: Problem) -> torch.Tensor:
    """Covariance matrix of vectors [count, rows, vocab] under the sampler: the variance in any direction."""
    p, flat = terms(problem).p, x.flatten(1)
    flat = flat - mean(p, flat)
    return (p[:, None] * flat).T @ flat


def excess_covariance(problem: Problem) -> torch.Tensor:
    """E[rho^2 (2 k1 + 1) s s^T]: what rho k1 adds to the covariance of rho k3."""
    s = terms(problem).score.flatten(1)
    weight = terms(problem).p * rho(problem) ** 2 * (2 * log_ratio(problem) + 1)
    return (weight[:, None] * s).T @ s


def least_eigenvalue(matrix: torch.Tensor) -> float:
    """The smallest eigenvalue relative to the largest: negative where some direction is."""
    spectrum = torch.linalg.eigvalsh(matrix)
    return float(spectrum[0] / spectrum.abs().max().clamp(min=1e-300))


def nowhere_less(matrix: torch.Tensor) -> bool:
    """Whether a difference of covariances is negative in no direction, up to rounding."""
    return least_eigenvalue(matrix) >= -1e-12
