"""The optimal policy of a regularized reward as a target, in bandits."""

from __future__ import annotations

from functools import cache

import torch

from kl_book.ledger.claims.ground import sums, worlds
from kl_companion.tabular import Problem


@cache
def target(problem: Problem) -> Problem:
    """The same world with its optimal policy pi_ref e^R / Z in the place of the reference."""
    t = sums.terms(problem)
    logits = torch.zeros_like(problem.ref_logits)
    tokens = problem.sequences[:, 0]
    return problem._replace(
        ref_logits=logits.index_add(1, tokens, (t.ref_logp.sum(-1) + problem.rewards)[None])
    )


def at_optimum(problem: Problem, beta: float = 1.0) -> Problem:
    """The bandit with the policy pi_ref e^(R/beta) / Z, the best of E[R] - beta KL."""
    return problem._replace(logits=target(problem._replace(rewards=problem.rewards / beta)).ref_logits)


@cache
def targets() -> tuple[Problem, ...]:
    """`bandits`, with their optimal policies as the reference."""
    return tuple(target(p) for p in worlds.bandits())
