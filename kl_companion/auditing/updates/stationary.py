"""Where an update comes to rest: the policy at which the expected update vanishes, and what it is like."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.least_squares import jacobian
from kl_companion.tabular import Problem
from kl_companion.theory.optima import optimal_policy

Field = Callable[[torch.Tensor], torch.Tensor]  # logits to the expected update, [rows, vocab]
_STEP = 1e-5
_FARTHEST = 12.0  # a log-odds beyond this counts as certainty: one answer in 160,000
_AT_REST = 1e-10
_MOST = 40
_AGAIN = 10  # Jacobians that are measured after the first


class Rest(NamedTuple):
    """The policy at which an update comes to rest.

    Attributes:
        settled: Whether the expected update vanishes there; else some choice became certain on the way.
        reward: E[R] under it.
        kl: Of whole answers, policy from reference, in nats.
    """

    settled: bool
    reward: float
    kl: float


def at_rest(field: Field, problem: Problem) -> Rest:
    """Follow an update from the policy of a world of two tokens to where it vanishes.

    Ascent by implicit steps that grow as the update shrinks (pseudo-transient continuation): it follows the
    field at first and is Newton's method in the end. The Jacobian is by central differences of the log-odds
    of every row, and by Broyden's updates of it.

    Args:
        field: The expected update at any logits.
        problem: The world and the policy to begin with; two tokens.

    Raises:
        ValueError: more than two tokens.
    """
    if problem.logits.shape[-1] != 2:
        raise ValueError(f"the world has {problem.logits.shape[-1]} tokens, expected 2")

    def odds_field(odds: torch.Tensor) -> torch.Tensor:
        return field(_logits(odds))[:, 0]

    odds = problem.logits[:, 0] - problem.logits[:, 1]
    found = odds_field(odds)
    eye = torch.eye(len(odds), dtype=odds.dtype)
    first = now = found.norm().item()
    step = 1.0 / max(first, _AT_REST)
    slopes, stuck, again = jacobian(odds_field, odds, _STEP), False, 0
    for _ in range(_MOST):
        if now < _AT_REST * max(1.0, first) or odds.abs().max() > _FARTHEST:
            break
        if stuck and again < _AGAIN:
            slopes, again = jacobian(odds_field, odds, _STEP), again + 1
        change = torch.linalg.solve(eye / step - slopes, found).clamp(-2.0, 2.0)
        before, old, odds = now, found, odds + change
        found = odds_field(odds)
        now = found.norm().item()
        # Broyden: the Jacobian that gives the change which was seen; a new one where that is not enough
        missed = found - old - slopes @ change
        slopes = slopes + torch.outer(missed, change) / (change @ change).clamp_min(1e-300)
        stuck = now > before
        step = step * min(max(before / max(now, 1e-300), 0.5), 4.0)
    settled = now < _AT_REST * max(1.0, first)
    logits = _logits(odds.clamp(-_FARTHEST, _FARTHEST))
    return rest_of(problem.token_logp(logits).sum(-1), problem, settled=settled)


def rest_of(logp: torch.Tensor, problem: Problem, *, settled: bool = True) -> Rest:
    """Return expected reward and KL of a policy with these log-probs of the answers of a world, [count]."""
    probability = logp.exp()
    difference = logp - problem.token_logp(problem.ref_logits).sum(-1)
    return Rest(
        settled, (probability * problem.rewards).sum().item(), (probability * difference).sum().item()
    )


def optimum(problem: Problem, beta: float) -> Rest:
    """Return the maximizer of E[R] - beta KL of whole answers."""
    ref_logp = problem.token_logp(problem.ref_logits).sum(-1)
    return rest_of(optimal_policy(problem.rewards, ref_logp, "reverse_kl", beta).logp, problem)


def _logits(odds: torch.Tensor) -> torch.Tensor:
    return torch.stack([odds, torch.zeros_like(odds)], -1)
