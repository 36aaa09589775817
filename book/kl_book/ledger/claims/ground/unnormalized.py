"""An old measure with a total mass: divergences of a policy from it, and losses on samples of it.

The old measure is Z times the distribution that a world is sampled from. Exact values and gradients are those
of `kl_book.ledger.claims.ground.sums.exact`; losses are differentiated as they are printed, and averaged
over the normalized old measure by explicit sums over whole sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground.errors import apart, worst
from kl_book.ledger.claims.ground.sums import exact, forward_kl, mean, reverse_kl, terms
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere
from kl_companion.tabular import Problem

MASSES = (0.5, 1.0, 3.0)
BETA = 0.4
TRIED = r"Bandits and trees that another policy samples, with $\beta$ = 0.4"
WITH_MASSES = f"{TRIED} and total masses 0.5, 1 and 3."

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of log pi, w = pi / pi_old (attached) and the reward of every sequence, each [count]: the loss, [count].

What is printed inside a stop-gradient is to be detached by the loss itself."""


class OldMeasure(NamedTuple):
    """``mass`` times the distribution that a world is sampled from."""

    problem: Problem
    mass: float = 1.0


@cache
def measured(masses: tuple[float, ...] = MASSES) -> tuple[OldMeasure, ...]:
    """Bandits and trees that another policy samples, with every one of the total masses."""
    return tuple(OldMeasure(p, z) for p in sampled_elsewhere() for z in masses)


@cache
def normalized() -> tuple[OldMeasure, ...]:
    """The same worlds with an old measure of mass 1."""
    return measured((1.0,))


def worlds_of(divergence: str) -> tuple[OldMeasure, ...]:
    """Old measures of several masses for the unnormalized divergences, distributions for the others."""
    return measured() if divergence.startswith("U") else normalized()


def log_old(world: OldMeasure) -> torch.Tensor:
    """log pi_old of every sequence, with the total mass in it, [count]; not from the enumerated terms."""
    problem = world.problem
    return problem.token_logp(problem.sampled_from).sum(-1) + math.log(world.mass)


def log_policy(world: OldMeasure) -> torch.Tensor:
    """log pi of every sequence, [count]."""
    return terms(world.problem).logp.sum(-1)


def log_weight(world: OldMeasure) -> torch.Tensor:
    """log w = log pi - log pi_old, with the total mass in pi_old, [count]."""
    return log_policy(world) - log_old(world)


# divergences of two vectors of log-densities [count], which need not be normalized


def unnormalized_forward(logp: torch.Tensor, log_old: torch.Tensor) -> torch.Tensor:
    """UKL(pi_old || pi): sum of pi_old log(pi_old / pi), plus the mass of pi minus that of pi_old."""
    return forward_kl(logp, log_old) + logp.exp().sum() - log_old.exp().sum()


def unnormalized_reverse(logp: torch.Tensor, log_old: torch.Tensor) -> torch.Tensor:
    """UKL(pi || pi_old): sum of pi log(pi / pi_old), plus the mass of pi_old minus that of pi."""
    return reverse_kl(logp, log_old) + log_old.exp().sum() - logp.exp().sum()


def normalized_forward(logp: torch.Tensor, log_old: torch.Tensor) -> torch.Tensor:
    """KL(pi_old / Z || pi)."""
    return forward_kl(logp, log_old.log_softmax(-1))


def normalized_reverse(logp: torch.Tensor, log_old: torch.Tensor) -> torch.Tensor:
    """KL(pi || pi_old / Z)."""
    return reverse_kl(logp, log_old.log_softmax(-1))


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "UFKL": unnormalized_forward,
    "URKL": unnormalized_reverse,
    "FKL": normalized_forward,
    "RKL": normalized_reverse,
}


def objective(world: OldMeasure, divergence: str, beta: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """J = sum of pi R - beta times the divergence, as a function of log pi of every sequence [count]."""
    old, rewards = log_old(world), world.problem.rewards
    return lambda logp: logp.exp() @ rewards - beta * DIVERGENCES[divergence](logp, old)


def objective_gradient(world: OldMeasure, divergence: str, beta: float = BETA) -> torch.Tensor:
    """Exact gradient of J in the policy's logits, [rows, vocab]."""
    whole = objective(world, divergence, beta)
    return exact(lambda logp, _: whole(logp), world.problem)[1]


def divergence_value(world: OldMeasure, divergence: str) -> float:
    """Exact value of a divergence at the policy."""
    return exact(lambda logp, _: DIVERGENCES[divergence](logp, log_old(world)), world.problem)[0]


def divergence_gradient(world: OldMeasure, divergence: str) -> torch.Tensor:
    """Exact gradient of a divergence in the policy's logits, [rows, vocab]."""
    return exact(lambda logp, _: DIVERGENCES[divergence](logp, log_old(world)), world.problem)[1]


# losses on samples of the normalized old measure


def slopes(function: Callable[[torch.Tensor], torch.Tensor], logp: torch.Tensor) -> torch.Tensor:
    """Derivative of a number in the log-density of every sequence, [count], by automatic differentiation."""
    leaf = logp.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(function(leaf), leaf)
    return found


def losses(world: OldMeasure, loss: Loss, logp: torch.Tensor) -> torch.Tensor:
    """A loss of every sequence at log-densities [count], which may carry a gradient, [count]."""
    return loss(logp, (logp - log_old(world)).exp(), world.problem.rewards)


def expected_loss(world: OldMeasure, loss: Loss, logp: torch.Tensor) -> torch.Tensor:
    """E[loss] over the normalized old measure at log-densities [count]."""
    return mean(terms(world.problem).p, losses(world, loss, logp))


def loss_gradients(world: OldMeasure, loss: Loss) -> torch.Tensor:
    """Gradient of the loss of every sequence in the policy's logits, [count, rows, vocab]."""
    per_sample = slopes(lambda logp: losses(world, loss, logp).sum(), log_policy(world))
    return per_sample[:, None, None] * terms(world.problem).score


def surrogate_gradient(world: OldMeasure, loss: Loss) -> torch.Tensor:
    """Expected gradient of a loss over the normalized old measure, [rows, vocab]."""
    return mean(terms(world.problem).p, loss_gradients(world, loss))


def loss_error(world: OldMeasure, divergence: str, loss: Loss) -> float:
    """How far the expected gradient of a loss is from minus that of its objective."""
    return apart(world.mass * surrogate_gradient(world, loss), -objective_gradient(world, divergence))


def worst_loss_error(divergence: str, loss: Loss) -> float:
    """The largest `loss_error` in all `worlds_of` a divergence."""
    return worst(loss_error(world, divergence, loss) for world in worlds_of(divergence))


def free_density(world: OldMeasure) -> torch.Tensor:
    """Log of a density of every sequence whose total mass is not 1, [count]: pi times 0.7, tilted."""
    logp = log_policy(world)
    return logp + math.log(0.7) + 0.1 * torch.arange(len(logp), dtype=logp.dtype) / len(logp)
