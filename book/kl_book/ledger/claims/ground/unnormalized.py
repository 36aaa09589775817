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

from kl_book.ledger.claims.ground.errors import apart
from kl_book.ledger.claims.ground.sums import exact, field, forward_kl, mean, reverse_kl, terms, variance
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere
from kl_companion.tabular import Problem

MASSES = (0.5, 1.0, 3.0)
BETA = 0.4

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of log pi, w = pi / pi_old (attached) and the reward of every sequence, each [count]: the loss, [count].

What is printed inside a stop-gradient is to be detached by the loss itself."""
Function = Callable[[torch.Tensor], torch.Tensor]


# divergences of two vectors of log-densities [count], which need not be normalized


def unnormalized_forward(logp: torch.Tensor, log_old: torch.Tensor) -> torch.Tensor:
    """UKL(pi_old || pi): sum of pi_old log(pi_old / pi), plus the mass of pi minus that of pi_old."""
    return forward_kl(logp, log_old) + logp.exp().sum() - log_old.exp().sum()


def unnormalized_reverse(logp: torch.Tensor, log_old: torch.Tensor) -> torch.Tensor:
    """UKL(pi || pi_old): sum of pi log(pi / pi_old), plus the mass of pi_old minus that of pi."""
    return reverse_kl(logp, log_old) + log_old.exp().sum() - logp.exp().sum()


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "UFKL": unnormalized_forward,
    "URKL": unnormalized_reverse,
    "FKL": lambda logp, log_old: forward_kl(logp, log_old.log_softmax(-1)),  # KL(pi_old / Z || pi)
    "RKL": lambda logp, log_old: reverse_kl(logp, log_old.log_softmax(-1)),  # KL(pi || pi_old / Z)
}


def slopes(function: Function, logp: torch.Tensor) -> torch.Tensor:
    """Derivative of a number in the log-density of every sequence, [count], by automatic differentiation."""
    leaf = logp.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(leaf), leaf)
    return slope


class OldMeasure(NamedTuple):
    """``mass`` times the distribution that a world is sampled from, over which means are taken.

    ``count`` is the number of sequences, ``rows`` that of prefixes.
    """

    problem: Problem
    mass: float = 1.0

    @property
    def p(self) -> torch.Tensor:
        """Probability of being sampled, [count]."""
        return terms(self.problem).p

    @property
    def s(self) -> torch.Tensor:
        """Score of every sequence, [count, rows, vocab]."""
        return terms(self.problem).score

    @property
    def R(self) -> torch.Tensor:
        """Reward of every sequence, [count]."""
        return self.problem.rewards

    @property
    def logp(self) -> torch.Tensor:
        """log pi of every sequence, [count]."""
        return terms(self.problem).logp.sum(-1)

    @property
    def log_old(self) -> torch.Tensor:
        """log pi_old of every sequence, total mass included, [count]; not from the enumerated terms."""
        return self.problem.token_logp(self.problem.sampled_from).sum(-1) + math.log(self.mass)

    @property
    def log_w(self) -> torch.Tensor:
        """log pi - log pi_old of every sequence, [count]."""
        return self.logp - self.log_old

    @property
    def w(self) -> torch.Tensor:
        """pi / pi_old of every sequence, [count]."""
        return self.log_w.exp()

    @property
    def free(self) -> torch.Tensor:
        """Log of a density of every sequence whose total mass is not 1, [count]: pi times 0.7, tilted."""
        count = len(self.logp)
        return self.logp + math.log(0.7) + 0.1 * torch.arange(count, dtype=self.logp.dtype) / count

    def E(self, x: torch.Tensor) -> torch.Tensor:
        """Mean of x [count, ...] over the normalized old measure."""
        return mean(self.p, x)

    def Es(self, c: torch.Tensor) -> torch.Tensor:
        """Mean of a coefficient [count] times the score, [rows, vocab]."""
        return field(c, self.problem)

    def scored(self, c: torch.Tensor) -> torch.Tensor:
        """A coefficient [count] times the score, [count, rows, vocab]."""
        return c[:, None, None] * self.s

    def var(self, x: torch.Tensor) -> float:
        """Variance of x [count, ...], summed over all axes but the first."""
        return variance(self.p, x)

    def objective(self, divergence: str) -> Function:
        """J = sum of pi R - beta times the divergence, as a function of log pi of every sequence [count]."""
        old, beta = self.log_old, BETA
        return lambda logp: logp.exp() @ self.R - beta * DIVERGENCES[divergence](logp, old)

    def d_objective(self, divergence: str) -> torch.Tensor:
        """Exact gradient of J in the policy's logits, [rows, vocab]."""
        objective = self.objective(divergence)
        return exact(lambda logp, _: objective(logp), self.problem)[1]

    def divergence(self, name: str) -> float:
        """Exact value of a divergence at the policy."""
        return exact(lambda logp, _: DIVERGENCES[name](logp, self.log_old), self.problem)[0]

    def d_divergence(self, name: str) -> torch.Tensor:
        """Exact gradient of a divergence in the policy's logits, [rows, vocab]."""
        return exact(lambda logp, _: DIVERGENCES[name](logp, self.log_old), self.problem)[1]

    def losses(self, loss: Loss, logp: torch.Tensor) -> torch.Tensor:
        """A loss of every sequence at log-densities [count], which may carry a gradient, [count]."""
        return loss(logp, (logp - self.log_old).exp(), self.R)

    def mean_loss(self, loss: Loss, logp: torch.Tensor) -> torch.Tensor:
        """E[loss] over the normalized old measure at log-densities [count]."""
        return self.E(self.losses(loss, logp))

    def coefficients(self, loss: Loss) -> torch.Tensor:
        """What multiplies the score in the gradient of the loss of every sequence, [count]."""
        return slopes(lambda logp: self.losses(loss, logp).sum(), self.logp)

    def slope(self, loss: Loss) -> torch.Tensor:
        """Gradient of the loss of every sequence in the policy's logits, [count, rows, vocab]."""
        return self.scored(self.coefficients(loss))

    def grad(self, loss: Loss) -> torch.Tensor:
        """Expected gradient of a loss over the normalized old measure, [rows, vocab]."""
        return self.E(self.slope(loss))

    def loss_error(self, loss: Loss, divergence: str) -> float:
        """How far the expected gradient of a loss is from minus that of its objective."""
        return apart(self.mass * self.grad(loss), -self.d_objective(divergence))


@cache
def measured(masses: tuple[float, ...] = MASSES) -> tuple[OldMeasure, ...]:
    """Bandits and trees that another policy samples, with every one of the total masses."""
    return tuple(OldMeasure(p, z) for p in sampled_elsewhere() for z in masses)


def normalized() -> tuple[OldMeasure, ...]:
    """The same worlds with an old measure of mass 1."""
    return measured((1.0,))


def each_divergence(*names: str) -> list[tuple[str, OldMeasure]]:
    """Some divergences, all by default, each with its worlds: of several masses where not normalized."""
    return [(d, x) for d in names or DIVERGENCES for x in (measured() if d.startswith("U") else normalized())]
