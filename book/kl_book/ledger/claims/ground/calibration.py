"""Groups of answers under a clipped surrogate: gradients of tokens, and coefficients with a KL in them.

A group is a row of indices of sequences; every token has its own ratio to the sampler.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground.groups import centered, groups, standardized_or_zero
from kl_book.ledger.claims.ground.sequences import ratios, token_kls
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.updates import binary, graded_trees
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem

CLIP = 0.2


@cache
def stale() -> tuple[Problem, ...]:
    """Bandits of 3 and 6 arms and trees with rewards 0 and 1, sampled by an older policy."""
    return tuple(binary(p) for p in sampled_elsewhere() if len(p.sequences) > 2)


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


class AnswerGroups(NamedTuple):
    """Groups of answers of one world; ``n`` is their size, ``length`` that of the longest answer.

    Attributes:
        problem: The world.
        answers: Indices of its answers, [groups, n].
    """

    problem: Problem
    answers: torch.Tensor

    @property
    def rewards(self) -> torch.Tensor:
        """Reward of every answer, [groups, n]."""
        return self.problem.rewards[self.answers]

    @property
    def advantage(self) -> torch.Tensor:
        """Standardized rewards, 0 in groups of equal rewards, [groups, n]."""
        return standardized_or_zero(self.rewards)

    @property
    def drift(self) -> torch.Tensor:
        """`mean_drift` of every answer, [groups, n]."""
        return mean_drift(self.problem)[self.answers]

    @property
    def left(self) -> torch.Tensor:
        """Rewards less the mean of their group, [groups, n]."""
        return centered(self.rewards, "mean")

    @property
    def pull(self) -> torch.Tensor:
        """Drifts less the mean of their group, [groups, n]."""
        return centered(self.drift, "mean")

    @property
    def mask(self) -> torch.Tensor:
        """1 on tokens, [groups, n, length]."""
        return self.problem.completion_mask[self.answers]

    @property
    def ratio(self) -> torch.Tensor:
        """Policy over sampler of every token, [groups, n, length]."""
        return ratios(self.problem)[self.answers]

    @property
    def log_ratio(self) -> torch.Tensor:
        """Log-ratio to the reference of every token, [groups, n, length]."""
        return terms(self.problem).log_ratio[self.answers]

    @property
    def k3(self) -> torch.Tensor:
        """`k3_slopes` of every token, [groups, n, length]."""
        return k3_slopes(self.problem)[self.answers]

    @property
    def equal(self) -> torch.Tensor:
        """Which groups have equal rewards, [groups]."""
        return (self.rewards == self.rewards[:, :1]).all(-1)

    @property
    def one_start(self) -> torch.Tensor:
        """Which groups have one first token in all answers, [groups]."""
        first = self.problem.sequences[self.answers][..., 0]
        return (first == first[:, :1]).all(-1)

    def where(self, which: torch.Tensor) -> AnswerGroups:
        """Some of the groups."""
        return self._replace(answers=self.answers[which])

    def joint(self, beta: float) -> torch.Tensor:
        """Calibrated coefficients, [groups, n]."""
        return calibrated(self.rewards, self.drift, beta)

    def slopes(self, coefficient: torch.Tensor) -> torch.Tensor:
        """`surrogate_slopes` of coefficients [groups, n], [groups, n, length]."""
        return surrogate_slopes(self.problem, self.answers, coefficient)

    def gates(self, coefficient: torch.Tensor) -> torch.Tensor:
        """1 where the surrogate of coefficients [groups, n] has a slope, [groups, n, length]."""
        c = coefficient[..., None]
        closed = ((c > 0) & (self.ratio > 1 + CLIP)) | ((c < 0) & (self.ratio < 1 - CLIP))
        return (~closed).double()

    def contributions(self, slopes: torch.Tensor) -> torch.Tensor:
        """Slopes [groups, n, length] times the scores of the tokens, [groups, n, length, rows, vocab]."""
        return slopes[..., None, None] * terms(self.problem).scores[self.answers]


def every_group(problem: Problem, n: int) -> AnswerGroups:
    """All ordered groups of n answers."""
    return AnswerGroups(problem, groups(problem, n)[1])


def mixed_groups(n: int = 3) -> list[AnswerGroups]:
    """Trees with rewards 0 and 1: all groups in which rewards differ."""
    return [g.where(~g.equal) for g in (every_group(problem, n) for problem in graded_trees())]
