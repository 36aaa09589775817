"""Policies that are stationary under a group-relative objective, in groups that they sample themselves.

The objective is written out for a vector of probabilities: mean preference of an answer over a group of the
sampler, minus beta times the mean penalty of a sampled answer. Slopes come from automatic differentiation in
the new policy alone; solvers look for policies with equal slopes and know no fixed-point equation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache, partial
from typing import Literal, NamedTuple

import torch

from kl_book.ledger.claims.ground.best_policies import reference as answers_of_the_reference
from kl_book.ledger.claims.ground.best_policies import true_reference
from kl_book.ledger.claims.ground.errors import apart, violation, worst
from kl_book.ledger.claims.ground.group_objective import RandomRewards
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


# questions with two answers, a and b

WIDEST = 30.0  # log-odds between which a policy is looked for
HALVINGS = 10
SECANTS = 8

REFERENCES = (0.02, 0.3, 0.8)
BETAS = (0.1, 1.0)
CERTAIN: tuple[Reward, Reward] = (1.0, 0.0)
CHECKED: tuple[Reward, Reward] = (right_or_wrong(0.9), right_or_wrong(0.1))
GRADED: tuple[Reward, Reward] = (((0.0, 1.0, 2.0), (0.2, 0.3, 0.5)), ((0.0, 1.0, 3.0), (0.5, 0.3, 0.2)))
RARE: tuple[Reward, Reward] = (((1.0, 1000.0), (0.99, 0.01)), 0.0)
KINDS = (CERTAIN, CHECKED, GRADED)
NEARLY_ZERO = 1e-12


def pair(
    ref: float,
    beta: float,
    rewards: tuple[Reward, Reward] = CERTAIN,
    size: int | None = 2,
    penalty: Penalty = "printed",
) -> Question:
    """A question with the answers a and b."""
    return question((ref, 1 - ref), beta, rewards, size, penalty)


weighted = partial(pair, penalty="weighted")  # with the ratio to the sampler in the penalty


def pairs(
    *rewards: tuple[Reward, Reward],
    refs: Sequence[float] = REFERENCES,
    betas: Sequence[float] = BETAS,
    size: int | None = 2,
    penalty: Penalty = "printed",
) -> list[Question]:
    """A question for every reference, coefficient and pair of rewards, in this order."""
    return [pair(*case, size, penalty) for case in itertools.product(refs, betas, rewards)]


def with_odds(log_odds: float) -> torch.Tensor:
    """(pi(a), pi(b)), both to full precision."""
    odds = torch.tensor([log_odds, -log_odds], dtype=torch.float64)
    return odds.sigmoid()


def lead(q: Question, log_odds: float) -> float:
    """Slope of answer a minus that of b where the sampler is the policy itself."""
    a, b = q.slopes(with_odds(log_odds)).tolist()
    return a - b


def between(q: Question, low: float, high: float) -> torch.Tensor:
    """The policy over two answers with equal slopes; ``low``: log-odds at which a leads; ``high``: b does.

    The two may stand in any order, [2]. Halvings, and then secants.
    """
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if lead(q, middle) > 0 else (low, middle)
    x, y, at_x, at_y = low, high, lead(q, low), lead(q, high)
    for _ in range(SECANTS):
        if at_x == at_y or abs(y - x) < 1e-13 or not at_y:
            break
        x, y, at_x = y, y - at_y * (y - x) / (at_y - at_x), at_y
        at_y = lead(q, y)
    return with_odds(y)


@cache
def stationary_pair(q: Question) -> torch.Tensor:
    """The policy over two answers where the slope of a falls below that of b, [2]."""
    return between(q, -WIDEST, WIDEST)


@cache
def all_stationary_pairs(q: Question, step: float = 1.0) -> tuple[torch.Tensor, ...]:
    """Every policy over two answers at which the sign of `lead` changes, in the order of pi(a)."""
    grid = [step * i for i in range(int(-WIDEST / step), int(WIDEST / step) + 1)]
    signs = [lead(q, x) > 0 for x in grid]
    found = []
    for (x, y), (a_leads, still) in zip(itertools.pairwise(grid), itertools.pairwise(signs), strict=True):
        if a_leads != still:
            found.append(between(q, x, y) if a_leads else between(q, y, x))
    return tuple(found)


def answer_a(q: Question) -> float:
    """pi(a) of the stationary policy, from the slopes of the objective."""
    return float(stationary_pair(q)[0])


def eq14(ratio: float, ref: float) -> float:
    """(14), with ratio = beta/gamma."""
    return (1 - ratio + ((1 - ratio) ** 2 + 4 * ratio * ref) ** 0.5) / 2
