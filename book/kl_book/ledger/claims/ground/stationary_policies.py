"""Policies that are stationary under a group-relative objective, in groups that they sample themselves.

The objective is written out for a vector of probabilities: mean preference of an answer over a group of the
sampler, minus beta times the mean penalty of a sampled answer. Slopes come from automatic differentiation in
the new policy alone; solvers look for policies with equal slopes and know no fixed-point equation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

import torch

from kl_book.ledger.claims.ground.best_policies import reference as answers_of_the_reference
from kl_book.ledger.claims.ground.best_policies import true_reference
from kl_book.ledger.claims.ground.errors import apart, violation, worst
from kl_book.ledger.claims.ground.preferences import RandomRewards
from kl_book.ledger.claims.ground.worlds import two_policies
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem

Levels = tuple[tuple[float, ...], ...]
Reward = float | tuple[tuple[float, ...], tuple[float, ...]]
Penalty = Literal["printed", "weighted"]


class Question(NamedTuple):
    """One context: its answers with random rewards, a reference, and how the policy is trained.

    Attributes:
        reference: pi_ref of every answer.
        beta: Coefficient of the penalty.
        levels: Rewards that every answer may get.
        chances: How likely each of them is.
        size: G, or None for the limit of large groups.
        penalty: k3 of sampled answers, ``"printed"``, or times the ratio to the sampler, ``"weighted"``.
    """

    reference: tuple[float, ...]
    beta: float
    levels: Levels
    chances: Levels
    size: int | None
    penalty: Penalty = "printed"

    @property
    def ref(self) -> torch.Tensor:
        """pi_ref of every answer, for the formulas that are tested, [count]."""
        return answers_of_the_reference(_world(self.reference))

    @property
    def rewards(self) -> RandomRewards:
        """Rewards that every answer may get, and how likely each of them is."""
        return _rewards(self.levels, self.chances)

    @property
    def r(self) -> torch.Tensor:
        """Expected reward of every answer, [count]."""
        return self.rewards.expected

    @property
    def margins(self) -> torch.Tensor:
        """P(o > o') - P(o' > o) of all pairs of answers, [count, count]."""
        wins = self.rewards.wins
        return wins - wins.T

    @property
    def gamma(self) -> float:
        """The margin of the first answer over the second."""
        return float(self.margins[0, 1])

    def noise(self, policy: torch.Tensor) -> float:
        """Deviation of the reward over the difference of the expected rewards of two answers."""
        a, b = self.r.tolist()
        return float(self.rewards.deviation(policy)) / (a - b)

    def preference(self, sampler: torch.Tensor) -> torch.Tensor:
        """P_G(o | sampler) of every answer, [count]."""
        return self.rewards.preference(sampler, self.size)

    def objective(self, policy: torch.Tensor, sampler: torch.Tensor) -> torch.Tensor:
        """J(policy | q) with groups from ``sampler``; answers that are never sampled have no penalty.

        Args:
            policy: [..., count].
            sampler: [count].
        """
        used = sampler > 0
        ratio = policy[..., used] / sampler[used]
        logp, ref_logp = policy[..., used].log(), _log_reference(self.reference)[used]
        cost = get_estimator("k3").fn(logp, ref_logp.expand_as(logp))
        cost = cost if self.penalty == "printed" else ratio * cost
        return (policy * self.preference(sampler)).sum(-1) - self.beta * (sampler[used] * cost).sum(-1)

    def slopes(self, policy: torch.Tensor) -> torch.Tensor:
        """Derivative of the objective in every probability of the new policy, at the sampler, [count]."""
        new = policy.clone().requires_grad_() if not policy.requires_grad else policy * 1.0
        value = self.objective(new, policy)
        (slopes,) = torch.autograd.grad(value, new, create_graph=policy.requires_grad)
        return slopes

    def not_stationary(self, policy: torch.Tensor) -> float:
        """Error of the first-order conditions: equal slopes in use, none larger outside; a distribution."""
        used, s = policy > 0, self.slopes(policy)
        mean = policy @ s
        outside = violation(*(s[~used] - mean).tolist())
        return worst(
            (apart(s[used], mean), outside, apart(policy.sum(), 1.0), violation(-float(policy.min())))
        )

    def could_gain(self, policy: torch.Tensor) -> float:
        """By how much a policy on a grid is better, in groups of this one; 0 where none is."""
        others = _simplex(len(policy), 400 if len(policy) == 2 else 40)
        gains = self.objective(others, policy) - self.objective(policy, policy)
        return violation(float(gains.max()))


def question(
    reference: Sequence[float],
    beta: float,
    rewards: Sequence[Reward],
    size: int | None,
    penalty: Penalty = "printed",
) -> Question:
    """A question; a reward is a number, or the levels that it may have and their chances."""
    pairs = [r if isinstance(r, tuple) else ((float(r),), (1.0,)) for r in rewards]
    width = max(len(levels) for levels, _ in pairs)
    levels = tuple(a + a[-1:] * (width - len(a)) for a, _ in pairs)
    chances = tuple(b + (0.0,) * (width - len(b)) for _, b in pairs)
    return Question(tuple(reference), beta, levels, chances, size, penalty)


def right_or_wrong(rate: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A reward of 1 with this chance, otherwise 0."""
    return (1.0, 0.0), (rate, 1.0 - rate)


THREE = (0.5, 0.3, 0.2)
NOISY: tuple[Reward, ...] = tuple(right_or_wrong(rate) for rate in (0.2, 0.5, 0.9))


@cache
def _world(reference: tuple[float, ...]) -> Problem:
    return two_policies(reference, reference)


@cache
def _rewards(levels: Levels, chances: Levels) -> RandomRewards:
    return RandomRewards(*(torch.tensor(x, dtype=torch.float64) for x in (levels, chances)))


@cache
def _log_reference(reference: tuple[float, ...]) -> torch.Tensor:
    """As the objective holds it, [count]."""
    return true_reference(_world(reference)).log()


@cache
def _simplex(count: int, steps: int) -> torch.Tensor:
    """Distributions on a grid, all of them inside, [points, count]."""
    rows = [
        (*parts, steps - sum(parts))
        for parts in itertools.product(range(1, steps), repeat=count - 1)
        if sum(parts) < steps
    ]
    return torch.tensor(rows, dtype=torch.float64) / steps


def _embedded(q: Question, used: tuple[int, ...], inside: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(q.reference), dtype=torch.float64).index_add(0, torch.tensor(used), inside)


def _pull(q: Question, used: tuple[int, ...], inside: torch.Tensor) -> torch.Tensor:
    """pi times (slope minus mean slope) of the answers in use, [used]."""
    s = q.slopes(_embedded(q, used, inside))[list(used)]
    return inside * (s - inside @ s)


@cache
def stationary(q: Question, used: tuple[int, ...] | None = None) -> torch.Tensor:
    """A policy with equal slopes of all answers in ``used`` (all, where not given), [count].

    From the reference along the pull of the objective, and then Newton's steps.
    """
    used = tuple(range(len(q.reference))) if used is None else used
    policy = torch.tensor([q.reference[i] for i in used], dtype=torch.float64)
    policy = policy / policy.sum()
    step = 0.5 / (q.beta + (1.0 if q.size is None else (q.size - 1) ** 0.5))
    for _ in range(15):
        policy = policy + step * _pull(q, used, policy)
    for _ in range(5):
        jacobian = torch.autograd.functional.jacobian(lambda x: _pull(q, used, x), policy)
        rows = torch.cat((jacobian, torch.ones(1, len(used), dtype=torch.float64)))
        missing = torch.cat((-_pull(q, used, policy), 1 - policy.sum()[None]))
        policy = policy + torch.linalg.lstsq(rows, missing[:, None]).solution[:, 0]
    return _embedded(q, used, policy)
