"""Sums over worlds that another policy samples: ratios, and losses and rewards that carry them.

Explicit sums and automatic differentiation, per sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from kl_book.ledger.claims.ground.sums import log_ratio, mean, terms
from kl_book.ledger.claims.ground.world import Enumeration
from kl_companion.tabular import Problem


def share_of_cases(against: Iterable[bool]) -> float:
    """Share of the cases tried that are against a statement; infinite where none was tried."""
    found = [bool(case) for case in against]
    return sum(found) / len(found) if found else math.inf


def times_score(coefficient: torch.Tensor, problem: Problem) -> torch.Tensor:
    """c rho s of every sequence, [count, rows, vocab]."""
    return Enumeration(problem).times_score(coefficient)


def average(x: torch.Tensor, problem: Problem) -> torch.Tensor:
    """E[x] under the sampler, [rows, vocab]."""
    return mean(terms(problem).p, x)


def covariance(x: torch.Tensor, problem: Problem) -> torch.Tensor:
    """Covariance matrix of vectors [count, rows, vocab] under the sampler: the variance in any direction."""
    p, flat = terms(problem).p, x.flatten(1)
    flat = flat - mean(p, flat)
    return (p[:, None] * flat).T @ flat


def excess_covariance(problem: Problem) -> torch.Tensor:
    """E[rho^2 (2 k1 + 1) s s^T]: what rho k1 adds to the covariance of rho k3."""
    s = terms(problem).score.flatten(1)
    weight = terms(problem).p * Enumeration(problem).rho ** 2 * (2 * log_ratio(problem) + 1)
    return (weight[:, None] * s).T @ s


def least_eigenvalue(matrix: torch.Tensor) -> float:
    """The smallest eigenvalue relative to the largest: negative where some direction is."""
    spectrum = torch.linalg.eigvalsh(matrix)
    return float(spectrum[0] / spectrum.abs().max().clamp(min=1e-300))


def nowhere_less(matrix: torch.Tensor) -> bool:
    """Whether a difference of covariances is negative in no direction, up to rounding."""
    return least_eigenvalue(matrix) >= -1e-12
