"""Questions with two answers, a and b: those that checks share, and solvers for their stationary policies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache, partial

import torch

from kl_book.ledger.claims.ground.stationary_policies import (
    Penalty,
    Question,
    Reward,
    question,
    right_or_wrong,
)

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
