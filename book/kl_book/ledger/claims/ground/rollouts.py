"""Groups of rollouts, the target policy and expected gradients (emapg2026, appendix J).

A sequence is one action here. Every gradient is a coefficient times the score of a sequence, averaged over
all groups of N rollouts and compared with gradients of exact objectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground.estimates import Estimate, logp_slope
from kl_book.ledger.claims.ground.groups import groups
from kl_book.ledger.claims.ground.sums import log_ratio, mean, terms
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import two_policies
from kl_companion.tabular import Problem, bandit, prefix_tree

SIZES = (2, 3)
GROUP_SIZE = 8  # rollouts of a prompt, where a finding speaks of practice


@cache
def rollouts() -> tuple[Problem, ...]:
    """Bandits near to and far from the reference, and a tree; all with Gaussian rewards."""
    flat = (bandit(2, seed=3), bandit(3, seed=1, scale=0.5), bandit(3, seed=2, scale=2.0), bandit(4, seed=5))
    return (*flat, prefix_tree(2, 2, seed=1))


@cache
def two_answers() -> Problem:
    """Two answers with rewards 1 and 0: policy (0.9, 0.1), even reference."""
    problem = two_policies((0.9, 0.1), (0.5, 0.5))
    return problem._replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64))


def first_logit(x: torch.Tensor) -> float:
    """Entry of the first logit."""
    return float(x.flatten()[0])


class Group(NamedTuple):
    """Every ordered group of N rollouts.

    Attributes:
        chance: Its probability, [groups].
        drawn: Its sequences, [groups, N].
        reward, log_ratio: R and l of its rollouts, [groups, N].
        problem: Where they come from.
    """

    chance: torch.Tensor
    drawn: torch.Tensor
    reward: torch.Tensor
    log_ratio: torch.Tensor
    problem: Problem

    @property
    def size(self) -> int:
        """Number of rollouts N."""
        return self.drawn.shape[-1]

    @property
    def value(self) -> torch.Tensor:
        """Mean reward of the group, own rollout included, [groups, 1]."""
        return self.reward.mean(-1, keepdim=True)

    @property
    def kl(self) -> torch.Tensor:
        """Mean log-ratio of the group, [groups, 1]."""
        return self.log_ratio.mean(-1, keepdim=True)

    @property
    def log_z(self) -> torch.Tensor:
        """log Z by importance sampling, eq (143), [groups, 1]."""
        return (self.reward - self.log_ratio).exp().mean(-1, keepdim=True).log()

    def expect(self, x: torch.Tensor) -> float:
        """E[x] of one number per group."""
        return float(self.chance @ x.reshape(len(self.chance)))

    def sum(self, c: torch.Tensor) -> torch.Tensor:
        """E[sum over the group of c s], [rows, vocab]; ``c`` broadcasts to [groups, N]."""
        weight = (self.chance[:, None] * c).expand(self.drawn.shape).flatten()
        score = terms(self.problem).score
        per_sequence = torch.zeros(len(score), dtype=weight.dtype).index_add(0, self.drawn.flatten(), weight)
        return mean(per_sequence, score)

    def others(self, x: torch.Tensor) -> torch.Tensor:
        """Mean of the other rollouts of the group, [groups, N]."""
        return (x.sum(-1, keepdim=True) - x) / (self.size - 1)


def group(problem: Problem, size: int) -> Group:
    """All groups of this size."""
    chance, drawn = groups(problem, size)
    return Group(chance, drawn, problem.rewards[drawn], log_ratio(problem)[drawn], problem)


def in_groups(
    *problems: Callable[[], Iterable[Problem]] | Problem, sizes: Iterable[int] = SIZES
) -> Callable[[], Iterator[tuple[Enumeration, Group]]]:
    """Return the cases of a check: the same worlds, each with all its groups of every size."""

    def every() -> Iterator[tuple[Enumeration, Group]]:
        for world in each(*problems)():
            yield from ((world, group(world.problem, size)) for size in sizes)

    return every


def with_mean_reward(estimate: Estimate, w: Enumeration) -> torch.Tensor:
    """`Enumeration.at_target` with the expected reward V, eq (145), in the place of log Z, [count]."""
    return logp_slope(estimate, w.l, w.R - w.E(w.R))


def eq147(w: Enumeration) -> torch.Tensor:
    """Expected right side of eq (147): -(R - V) s + grad KL."""
    return w.Es(-(w.R - w.E(w.R))) + w.d_kl
