"""Groups of sampled sequences: every group with its probability, and centering within it."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Literal

import torch

from kl_book.ledger.claims.ground.sums import exact, log_ratio, mean, reverse_kl, terms, variance
from kl_book.ledger.claims.ground.worlds import bandits, trees, two_policies
from kl_companion.tabular import Problem


@cache
def ordered(kinds: int, n: int) -> torch.Tensor:
    """All ordered groups of n out of several kinds, as indices, [groups, n]."""
    return torch.tensor(list(itertools.product(range(kinds), repeat=n)))


def groups(problem: Problem, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All ordered groups of n sequences: their probabilities, [groups], and their indices, [groups, n]."""
    p = terms(problem).p
    index = ordered(len(p), n)
    return p[index].prod(-1), index


def centered(x: torch.Tensor, how: Literal["none", "mean", "leave_one_out"]) -> torch.Tensor:
    """x, x minus the mean of its group, or x minus the mean of the others, [groups, n]."""
    n = x.shape[-1]
    if how == "none":
        return x
    total = x.sum(-1, keepdim=True)
    return x - (total / n if how == "mean" else (total - x) / (n - 1))


def leave_one_out_gain(problem: Problem, n: int) -> float:
    """n times (variance without a baseline - with leave-one-out), from moments of one draw.

    KL (2 E[l|s|^2] - KL E|s|^2) is what the constant KL would save; using n - 1 samples for it costs
    (Var(l) E|s|^2 + |grad KL|^2) / (n - 1).
    """
    t, (kl, gradient) = terms(problem), exact(reverse_kl, problem)
    ratio, square = t.log_ratio.sum(-1), t.score.square().sum((-2, -1))
    both, size = float(mean(t.p, ratio * square)), float(mean(t.p, square))
    spread = variance(t.p, ratio)
    return kl * (2 * both - kl * size) - (spread * size + float(gradient.square().sum())) / (n - 1)


Centering = Literal["none", "mean", "leave_one_out"]


def centered_gradient(
    problem: Problem, n: int, how: Centering, cost: torch.Tensor | None = None
) -> torch.Tensor:
    """(1/n) sum of centered cost times score, of every group, [groups, rows, vocab]."""
    _, index = groups(problem, n)
    x = (log_ratio(problem) if cost is None else cost)[index]
    return torch.einsum("gi,girv->grv", centered(x, how), terms(problem).score[index]) / n


def worlds_with_group_sizes() -> list[tuple[Problem, int]]:
    """Bandits and a tree with every group size that is quickly enumerated."""
    several = [(p, n) for p in bandits() for n in (2, 3) if len(p.sequences) ** n <= 250]
    return [*several, (trees()[0], 2), (trees()[0], 3), (two_policies((0.75, 0.25), (0.5, 0.5)), 6)]


def standardized(x: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group, over its standard deviation, [groups, n]."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-4)


def standardized_or_zero(x: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group, over its standard deviation with 1/n; 0 in a group that has none."""
    spread = x.std(-1, correction=0, keepdim=True)
    return ((x - x.mean(-1, keepdim=True)) / spread).where(spread > 1e-12, 0.0)
