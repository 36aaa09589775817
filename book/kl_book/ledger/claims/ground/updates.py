"""The update of one prompt: standardized rewards with the KL beside or inside them, and token penalties.

Statistics are those of the population, the limit of large groups, unless a group is named.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from kl_book.ledger.claims.ground import sequences, sums, worlds
from kl_companion.tabular import Problem

Function = Callable[[torch.Tensor], torch.Tensor]

# f of u = pi_ref / pi: the penalty of a sampled token
GENERATORS: dict[str, Function] = {
    "k1": lambda u: -u.log(),
    "k3": lambda u: u - u.log() - 1,
    "forward": lambda u: u * u.log() - u + 1,
    "square": lambda u: (u - 1) ** 2 / 2,
    "sine": lambda u: (3 * u).sin(),
}
# what a prompt's expected reward is worth
UTILITIES: dict[str, Function] = {
    "2 arcsin sqrt(p)": lambda p: 2 * p.sqrt().asin(),
    "p": lambda p: p,
    "log p": lambda p: p.log(),
}


def binary(problem: Problem) -> Problem:
    """The same world; the answers with a reward above the median are right (1), the others wrong (0)."""
    return problem._replace(rewards=(problem.rewards > problem.rewards.median()).double())


@cache
def graded() -> tuple[Problem, ...]:
    """Bandits of 3 and 6 arms and trees, with rewards 0 and 1."""
    return tuple(binary(p) for p in (*worlds.bandits()[3:], *worlds.trees()))


def graded_trees() -> tuple[Problem, ...]:
    """The trees among `graded`."""
    return tuple(p for p in graded() if p.rows.shape[1] > 1)


@cache
def graded_pairs() -> tuple[Problem, ...]:
    """Bandits of two arms, one of them right."""
    return tuple(binary(p) for p in worlds.bandits()[:3])


def population_mean(problem: Problem, x: torch.Tensor) -> float:
    """E[x] of a number per sequence."""
    return float(sums.mean(sums.terms(problem).p, x))


def deviation(problem: Problem, x: torch.Tensor) -> float:
    """Standard deviation of a number per sequence."""
    return sums.variance(sums.terms(problem).p, x) ** 0.5


def standardized(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """(x - E x) / std(x) of a number per sequence."""
    return (x - population_mean(problem, x)) / deviation(problem, x)


def standardized_update(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """E[(x - E x) / std(x) times the score], [rows, vocab]."""
    return sums.field(standardized(problem, x), problem)


def shaped(problem: Problem, beta: float) -> torch.Tensor:
    """r - beta times the summed log-ratio of every sequence."""
    return problem.rewards - beta * sums.log_ratio(problem)


def utility_gradient(problem: Problem, utility: str = "p") -> torch.Tensor:
    """Gradient of a utility of the expected reward, [rows, vocab]."""
    return sums.exact(lambda p, q: UTILITIES[utility](p.exp() @ problem.rewards), problem)[1]


def arcsine_gradient(problem: Problem) -> torch.Tensor:
    """Gradient of 2 arcsin sqrt p, p the expected reward."""
    return utility_gradient(problem, "2 arcsin sqrt(p)")


def regularized(problem: Problem, beta: float) -> tuple[float, torch.Tensor]:
    """Value and gradient of E[r] - beta KL of whole sequences."""
    return sums.exact(lambda p, q: p.exp() @ problem.rewards - beta * sums.reverse_kl(p, q), problem)


def regularized_gradient(problem: Problem, beta: float) -> torch.Tensor:
    """Gradient of E[r] - beta KL of whole sequences."""
    return regularized(problem, beta)[1]


def decoupled_gradient(problem: Problem, beta: float) -> torch.Tensor:
    """Gradient of 2 arcsin sqrt p - beta KL of whole sequences."""
    return arcsine_gradient(problem) - beta * sums.kl_gradient(problem)


def slope(utility: str, p: float) -> float:
    """Derivative of a utility."""
    x = torch.tensor(p, dtype=torch.float64, requires_grad=True)
    return float(torch.autograd.grad(UTILITIES[utility](x), x)[0])


def coordinates(update: torch.Tensor, *along: torch.Tensor) -> torch.Tensor:
    """Coefficients of an update in terms of a few gradients, by least squares."""
    columns = torch.stack([x.flatten() for x in along], dim=1)
    return torch.linalg.lstsq(columns, update.flatten()[:, None]).solution[:, 0]


# penalties of tokens


def token_field(problem: Problem, coefficient: torch.Tensor) -> torch.Tensor:
    """E[sum_t c_t s_t] for coefficients [count, length], [rows, vocab]."""
    return sums.mean(sums.terms(problem).p, sequences.token_weighted(problem, coefficient))


def every_token(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """A number per sequence, given to each of its tokens, [count, length]."""
    return x[:, None] * problem.completion_mask


def penalties(f: str, problem: Problem) -> torch.Tensor:
    """f(u) of every token, 0 outside the mask, [count, length]."""
    return GENERATORS[f]((-sums.terms(problem).log_ratio).exp()) * problem.completion_mask


def local_slopes(f: str, problem: Problem) -> torch.Tensor:
    """Derivative of f(u) of every token in its log-prob, by automatic differentiation, [count, length]."""
    t = sums.terms(problem)
    in_logp = sums.slopes(lambda logp: GENERATORS[f]((t.ref_logp - logp).exp()), t.logp)
    return in_logp * problem.completion_mask


def later(x: torch.Tensor) -> torch.Tensor:
    """Sum of the entries after each, along the last axis."""
    return sequences.sum_from_here(x) - x


def penalty_gradient(f: str, problem: Problem) -> torch.Tensor:
    """Exact gradient of E[sum_t f(u_t)] under the policy itself, [rows, vocab]."""
    theta = problem.logits.detach().clone().requires_grad_()
    logp = problem.token_logp(theta)
    cost = GENERATORS[f]((problem.token_logp(problem.ref_logits) - logp).exp()) * problem.completion_mask
    (gradient,) = torch.autograd.grad(logp.sum(-1).exp() @ cost.sum(-1), theta)
    return gradient


def row_divergences(f: str, problem: Problem, logits: torch.Tensor) -> torch.Tensor:
    """sum_a pi(a|s) f(pi_ref(a|s) / pi(a|s)) of every prefix s, [rows]."""
    logp = logits.log_softmax(-1)
    return (logp.exp() * GENERATORS[f]((problem.ref_logits.log_softmax(-1) - logp).exp())).sum(-1)


def visited_divergence(f: str, problem: Problem, logits: torch.Tensor) -> torch.Tensor:
    """Sum over the visited prefixes of their divergence; visits are those of the sampler, held fixed."""
    along = row_divergences(f, problem, logits)[problem.rows] * problem.completion_mask
    return sums.terms(problem).p @ along.sum(-1)
