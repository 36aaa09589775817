"""Objectives of whole answers and of tokens with importance weights, and the order of what separates them.

Every world here has three policies: the target (``logits``), an older one in the training engine
(``ref_logits``), and the one in the inference engine that samples (``behavior_logits``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch

from kl_book.ledger.claims.ground.calibration import token_ratios
from kl_book.ledger.claims.ground.errors import violation
from kl_book.ledger.claims.ground.sequences import token_weighted
from kl_book.ledger.claims.ground.sums import exact, terms
from kl_book.ledger.claims.ground.updates import every_token
from kl_companion.tabular import Problem, prefix_tree

Surrogate = Callable[[Problem, torch.Tensor], torch.Tensor]
SMALL = 2.0**-9  # share of the way from the sampler, at which an order is measured
SLACK = 0.05  # of a measured exponent


@cache
def sampled_trees() -> tuple[Problem, ...]:
    """Trees of two to four tokens that another policy samples; the last two have answers of many lengths."""
    return (
        prefix_tree(3, 2, seed=5, off_policy=True, scale=2.0),
        prefix_tree(2, 3, seed=11, off_policy=True, scale=2.0),
        prefix_tree(3, 3, seed=6, off_policy=True, eos=True, scale=2.0),
        prefix_tree(2, 4, seed=7, off_policy=True, eos=True, scale=2.0),
    )


def lengths(problem: Problem) -> torch.Tensor:
    """Number of tokens of every answer, [count]."""
    return problem.completion_mask.sum(-1)


@cache
def towards(problem: Problem, share: float) -> Problem:
    """The world with its policy on the line between sampler (0) and policy (1), in logits."""
    start = problem.sampled_from
    return problem._replace(logits=start + share * (problem.logits - start))


def ratios(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """Policy over sampler of every token, 1 outside the mask, differentiable, [count, length]."""
    return (problem.token_logp(theta) - problem.token_logp(problem.sampled_from)).exp()


def of_answers(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[ratio of the whole answer times R], the objective with weights of answers."""
    return terms(problem).p @ (ratios(problem, theta).prod(-1) * problem.rewards)


def of_tokens(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[sum over tokens of their ratio times R], the objective with weights of tokens."""
    weights = (ratios(problem, theta) * problem.completion_mask).sum(-1)
    return terms(problem).p @ (weights * problem.rewards)


def without_weights(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[sum over tokens of their log-prob times R]: no weight at all."""
    return terms(problem).p @ (problem.token_logp(theta).sum(-1) * problem.rewards)


def per_length(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """`of_tokens` with the sum of every answer divided by its number of tokens."""
    weights = (ratios(problem, theta) * problem.completion_mask).sum(-1) / lengths(problem)
    return terms(problem).p @ (weights * problem.rewards)


def gradient_of(surrogate: Surrogate, problem: Problem) -> torch.Tensor:
    """Gradient of an objective in the policy's logits, by automatic differentiation, [rows, vocab]."""
    theta = problem.logits.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(surrogate(problem, theta), theta)
    return gradient


def expected_reward(problem: Problem) -> tuple[float, torch.Tensor]:
    """Exact E[R] under the policy, and its gradient, [rows, vocab]."""
    return exact(lambda p, q: p.exp() @ problem.rewards, problem)


def token_terms(problem: Problem) -> torch.Tensor:
    """What eq (4) averages: sum over tokens of ratio, reward and score, [count, rows, vocab]."""
    return token_weighted(problem, token_ratios(problem) * every_token(problem, problem.rewards))


def sampled_by_the_reference(problem: Problem) -> Problem:
    """The same world, sampled by its reference."""
    return problem._replace(behavior_logits=problem.ref_logits)


def deltas(problem: Problem) -> torch.Tensor:
    """Ratio minus 1 of every token, 0 outside the mask, [count, length]."""
    return token_ratios(problem) - 1


def exponent(size: Callable[[float], float], at: float = SMALL) -> float:
    """Power of the step with which a remainder shrinks: log2 of its size at a step over that at half."""
    return math.log2(size(at) / size(at / 2))


def not_of_order(found: float, wanted: float) -> float:
    """Error of "shrinks with this power"."""
    return violation(abs(found - wanted) - SLACK)


def gradient_gap(surrogate: Surrogate, problem: Problem) -> float:
    """Distance of a surrogate's gradient from that of the expected reward."""
    return float((gradient_of(surrogate, problem) - expected_reward(problem)[1]).norm())


def order_of_gradient(surrogate: Surrogate, problem: Problem) -> float:
    """Power of the distance from the sampler with which `gradient_gap` shrinks."""
    return exponent(lambda h: gradient_gap(surrogate, towards(problem, h)))


def value_gap(surrogate: Surrogate, problem: Problem, share: float) -> float:
    """What a surrogate and the expected reward differ by, beyond what they differ by at the sampler."""
    here, start = towards(problem, share), towards(problem, 0.0)
    apart_here, apart_start = (float(surrogate(p, p.logits)) - expected_reward(p)[0] for p in (here, start))
    return abs(apart_here - apart_start)


def order_of_value(surrogate: Surrogate, problem: Problem) -> float:
    """Power of the distance from the sampler with which `value_gap` shrinks."""
    return exponent(lambda h: value_gap(surrogate, problem, h))
