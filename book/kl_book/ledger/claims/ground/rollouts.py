"""Groups of rollouts, the target policy and expected gradients (emapg2026, appendix J).

A sequence is one action here. Every gradient is a coefficient times the score of a sequence, averaged over
all groups of N rollouts and compared with gradients of exact objectives.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground.estimates import Estimate
from kl_book.ledger.claims.ground.groups import groups
from kl_book.ledger.claims.ground.sums import (
    exact,
    field,
    forward_kl,
    kl_gradient,
    log_ratio,
    mean,
    reverse_kl,
    terms,
)
from kl_book.ledger.claims.ground.worlds import two_policies
from kl_companion.tabular import Problem, bandit, prefix_tree

SIZES = (2, 3)


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


def log_z(problem: Problem) -> torch.Tensor:
    """log of sum pi_ref e^R, a scalar."""
    return (terms(problem).ref_logp.sum(-1) + problem.rewards).logsumexp(0)


def log_w(problem: Problem) -> torch.Tensor:
    """R - l - log Z, [count]."""
    return problem.rewards - log_ratio(problem) - log_z(problem)


def logp_slope(estimate: Estimate, logp: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Derivative of an estimate by the policy's log-prob, entry by entry: what multiplies the score."""
    leaf = logp.detach().clone().requires_grad_()
    (c,) = torch.autograd.grad(estimate(leaf, target).sum(), leaf)
    return c


def slope_at_target(estimate: Estimate, problem: Problem) -> torch.Tensor:
    """`logp_slope` of an estimate whose reference is pi*, with the exact Z, [count]."""
    t = terms(problem)
    return logp_slope(estimate, t.logp.sum(-1), t.ref_logp.sum(-1) + problem.rewards - log_z(problem))


def reward_gradient(problem: Problem) -> torch.Tensor:
    """Gradient of E[R], [rows, vocab]."""
    return exact(lambda a, b: (a.exp() * problem.rewards).sum(), problem)[1]


def kl_to_target(problem: Problem, *, forward: bool = False) -> tuple[float, torch.Tensor]:
    """KL(policy || pi*), or with its arguments exchanged: value and gradient."""
    z = log_z(problem)
    d = forward_kl if forward else reverse_kl
    return exact(lambda a, b: d(a, b + problem.rewards - z), problem)


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
        return expected_sum(c, self.problem, self)

    def others(self, x: torch.Tensor) -> torch.Tensor:
        """Mean of the other rollouts of the group, [groups, N]."""
        return (x.sum(-1, keepdim=True) - x) / (self.size - 1)


def group(problem: Problem, size: int) -> Group:
    """All groups of this size."""
    chance, drawn = groups(problem, size)
    return Group(chance, drawn, problem.rewards[drawn], log_ratio(problem)[drawn], problem)


def expected_sum(c: torch.Tensor, problem: Problem, g: Group) -> torch.Tensor:
    """E[sum over the group of c s], [rows, vocab]; ``c`` broadcasts to [groups, N]."""
    weight = (g.chance[:, None] * c).expand(g.drawn.shape).flatten()
    score = terms(problem).score
    per_sequence = torch.zeros(len(score), dtype=weight.dtype).index_add(0, g.drawn.flatten(), weight)
    return mean(per_sequence, score)


def expected_reward(problem: Problem) -> torch.Tensor:
    """V as eq (145) defines it: a number."""
    return mean(terms(problem).p, problem.rewards)


def with_mean_reward(estimate: Estimate, problem: Problem) -> torch.Tensor:
    """`slope_at_target` with V in the place of log Z, [count]."""
    return logp_slope(estimate, log_ratio(problem), problem.rewards - expected_reward(problem))


def regularized_gradient(problem: Problem, beta: float = 1.0) -> torch.Tensor:
    """Gradient of beta KL(policy || reference) - E[R]."""
    return beta * kl_gradient(problem) - reward_gradient(problem)


GROUP_SIZE = 8  # rollouts of a prompt, where a finding speaks of practice


def eq147(problem: Problem) -> torch.Tensor:
    """Expected right side of eq (147): -(R - V) s + grad KL."""
    return field(-(problem.rewards - expected_reward(problem)), problem) + kl_gradient(problem)
