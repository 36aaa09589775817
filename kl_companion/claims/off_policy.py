"""What the checks off-policy share: worlds that another policy samples, ratios, losses that carry them.

Like `kl_companion.claims.worlds` it is explicit sums and automatic differentiation, per sequence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal

import torch

from kl_companion.claims.worlds import (
    Formula,
    differentiated,
    exact,
    mean,
    reverse_kl,
    terms,
    two_policies,
    values,
    worlds,
)
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem, bandit, prefix_tree

BOUND = 0.5  # k1 >= -1/2, so that 2 k1 + 1 >= 0


@cache
def sampled_elsewhere() -> tuple[Problem, ...]:
    """Bandits and trees, with and without end-of-sequence, that another policy samples."""
    flat = [bandit(v, seed=v, scale=s, off_policy=True) for v in (2, 3, 6) for s in (0.3, 1.0)]
    return (
        *flat,
        prefix_tree(3, 2, seed=5, off_policy=True, scale=2.0),
        prefix_tree(2, 3, seed=6, off_policy=True, eos=True),
    )


@cache
def all_worlds() -> tuple[Problem, ...]:
    """`worlds` and `sampled_elsewhere`: on-policy and off-policy."""
    return worlds() + sampled_elsewhere()


def three_policies(policy: Sequence[float], reference: Sequence[float], behavior: Sequence[float]) -> Problem:
    """A bandit with these probabilities, sampled from the third."""
    mu = torch.tensor([behavior], dtype=torch.float64).log()
    return two_policies(policy, reference)._replace(behavior_logits=mu)


def share(against: Iterable[bool]) -> float:
    """Share of the cases tried that are against a statement; infinite where none was tried."""
    found = [bool(case) for case in against]
    return sum(found) / len(found) if found else math.inf


@cache
def near(problem: Problem, bound: float = BOUND) -> Problem:
    """The same world with its policy pulled towards the reference until no log-ratio exceeds ``bound``.

    Raises:
        ValueError: halving the distance forty times is not enough.
    """
    shift = problem.logits - problem.ref_logits
    for halvings in range(40):
        closer = problem._replace(logits=problem.ref_logits + shift * 0.5**halvings)
        if float(terms(closer).log_ratio.sum(-1).abs().max()) <= bound:
            return closer
    raise ValueError(f"no policy towards the reference has log-ratios of at most {bound}")


def rho(problem: Problem) -> torch.Tensor:
    """Policy over sampler of whole sequences, [count]."""
    t = terms(problem)
    return t.logp.sum(-1).exp() / t.p


def k1(problem: Problem) -> torch.Tensor:
    """Log-ratio of whole sequences, [count]."""
    return terms(problem).log_ratio.sum(-1)


def times_score(coefficient: torch.Tensor, problem: Problem) -> torch.Tensor:
    """c rho s of every sequence, [count, rows, vocab]."""
    return (coefficient * rho(problem))[:, None, None] * terms(problem).score


def in_loss(
    formula: Formula, problem: Problem, ratio: Literal["attached", "detached"] = "attached"
) -> torch.Tensor:
    """Gradient of rho times the estimate, by automatic differentiation, [count, rows, vocab].

    The sampler is a constant; ``ratio`` says whether the policy in rho carries a gradient.
    """
    fn = get_estimator(formula).fn if isinstance(formula, str) else formula
    t = terms(problem)
    leaf = t.logp.sum(-1).clone().requires_grad_()
    weight = (leaf - t.p.log()).exp()
    x = (weight if ratio == "attached" else weight.detach()) * fn(leaf, t.ref_logp.sum(-1))
    (c,) = torch.autograd.grad(x.sum(), leaf)
    return c[:, None, None] * t.score


def in_reward(formula: Formula, problem: Problem) -> torch.Tensor:
    """Detached estimate times rho s of every sequence, [count, rows, vocab]."""
    return times_score(values(formula, problem), problem)


def average(x: torch.Tensor, problem: Problem) -> torch.Tensor:
    """E[x] under the sampler, [rows, vocab]."""
    return mean(terms(problem).p, x)


def naive(formula: Formula, problem: Problem) -> torch.Tensor:
    """E[gradient of the estimate] with no ratio at all, [rows, vocab]."""
    return average(differentiated(formula, problem), problem)


@cache
def kl_gradient(problem: Problem) -> torch.Tensor:
    """Gradient of KL(policy || reference), [rows, vocab]."""
    return exact(reverse_kl, problem)[1]


def half_square(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """E[k2] under the policy, from the log-probs of all sequences: an objective, to be differentiated."""
    return (logp.exp() * (logp - ref_logp) ** 2).sum() / 2


def covariance(x: torch.Tensor, problem: Problem) -> torch.Tensor:
    """Covariance matrix of vectors [count, rows, vocab] under the sampler: the variance in any direction."""
    p, flat = terms(problem).p, x.flatten(1)
    flat = flat - mean(p, flat)
    return (p[:, None] * flat).T @ flat


def excess_covariance(problem: Problem) -> torch.Tensor:
    """E[rho^2 (2 k1 + 1) s s^T]: what rho k1 adds to the covariance of rho k3."""
    s = terms(problem).score.flatten(1)
    weight = terms(problem).p * rho(problem) ** 2 * (2 * k1(problem) + 1)
    return (weight[:, None] * s).T @ s


def least(matrix: torch.Tensor) -> float:
    """The smallest eigenvalue relative to the largest: negative where some direction is."""
    spectrum = torch.linalg.eigvalsh(matrix)
    return float(spectrum[0] / spectrum.abs().max().clamp(min=1e-300))


def nowhere_less(matrix: torch.Tensor) -> bool:
    """Whether a difference of covariances is negative in no direction, up to rounding."""
    return least(matrix) >= -1e-12


def groups(problem: Problem, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All ordered groups of n sequences: their probabilities, [groups], and their indices, [groups, n]."""
    p = terms(problem).p
    index = torch.tensor(list(itertools.product(range(len(p)), repeat=n)))
    return p[index].prod(-1), index


def centered(x: torch.Tensor, how: Literal["none", "mean", "leave_one_out"]) -> torch.Tensor:
    """x, x minus the mean of its group, or x minus the mean of the others, [groups, n]."""
    n = x.shape[-1]
    if how == "none":
        return x
    total = x.sum(-1, keepdim=True)
    return x - (total / n if how == "mean" else (total - x) / (n - 1))
