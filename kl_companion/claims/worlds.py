"""What the checks of the claims share: worlds to enumerate, explicit sums over their sequences, errors.

Everything here is a sum over all sequences with scores from automatic differentiation, one per token. Of
the package only the worlds and the formulas of the estimators take part: no moments, no losses, no audit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import torch

from kl_companion.estimators import get_estimator
from kl_companion.rollout import Rollout
from kl_companion.tabular import Problem, bandit, prefix_tree, stack

STRICT = 1e-6  # "strictly", "biased", "differs": by at least this much
Formula = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@cache
def bandits() -> tuple[Problem, ...]:
    """Bandits of 2, 3 and 6 arms with policies near to and far from the reference."""
    return tuple(bandit(v, seed=7 * v + i, scale=s) for v in (2, 3, 6) for i, s in enumerate((0.3, 1.0, 2.5)))


@cache
def trees() -> tuple[Problem, ...]:
    """Trees of two and three steps, with sequences of one length and with end-of-sequence."""
    return (
        prefix_tree(2, 2, seed=1, scale=0.5),
        prefix_tree(3, 2, seed=2, scale=2.0),
        prefix_tree(2, 3, seed=3, eos=True),
        prefix_tree(3, 3, seed=4, eos=True, scale=2.0),
    )


def worlds() -> tuple[Problem, ...]:
    """`bandits` and `trees`; all on-policy."""
    return bandits() + trees()


@cache
def arms(count: int = 100, vocab: int = 100, scale: float = 1.0) -> Problem:
    """A stack of bandits as tang2025pitfalls, appendix C, draws them: one per seed."""
    return stack([bandit(vocab, seed=seed, scale=scale) for seed in range(count)])


@cache
def hedge_bandits() -> tuple[Problem, ...]:
    """The fixed list for hedged statements about one decision: 90 bandits, near the reference and far."""
    sizes = itertools.product((3, 10, 100), (0.3, 1.0, 2.5), range(10))
    return tuple(bandit(v, seed=seed, scale=s) for v, s, seed in sizes)


@cache
def hedge_trees() -> tuple[Problem, ...]:
    """The fixed list for hedged statements about sequences: 48 trees, near the reference and far."""
    shapes = ((2, 2, False), (3, 2, False), (2, 3, True), (3, 3, True))
    return tuple(
        prefix_tree(v, t, seed=seed, eos=eos, scale=s)
        for v, t, eos in shapes
        for s in (0.3, 1.0, 2.0)
        for seed in range(4)
    )


def two_policies(policy: Sequence[float], reference: Sequence[float]) -> Problem:
    """A bandit with these probabilities."""
    p, q = (torch.tensor([x], dtype=torch.float64).log() for x in (policy, reference))
    return bandit(len(policy))._replace(logits=p, ref_logits=q)


def tree_of(policy: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]) -> Problem:
    """A tree of two steps with these next-token probabilities, one row per prefix."""
    p, q = (torch.tensor(x, dtype=torch.float64).log() for x in (policy, reference))
    return prefix_tree(len(policy[0]), 2)._replace(logits=p, ref_logits=q)


class Terms(NamedTuple):
    """Everything that can be sampled from a world, written out.

    Attributes:
        p: Probability of being sampled, [count].
        logp, ref_logp: Of every token, [count, length], 0 outside the mask.
        scores: Gradient of log pi of every token, [count, length, rows, vocab].
    """

    p: torch.Tensor
    logp: torch.Tensor
    ref_logp: torch.Tensor
    scores: torch.Tensor

    @property
    def log_ratio(self) -> torch.Tensor:
        """log pi - log pi_ref of every token, [count, length]."""
        return self.logp - self.ref_logp

    @property
    def score(self) -> torch.Tensor:
        """Gradient of log pi of whole sequences, [count, rows, vocab]."""
        return self.scores.sum(1)


@lru_cache(maxsize=1024)
def terms(problem: Problem) -> Terms:
    """The sequences of one world with their probabilities, log-probs and scores."""
    theta = problem.logits.detach()
    logp, ref_logp = problem.token_logp(theta), problem.token_logp(problem.ref_logits)
    scores = torch.autograd.functional.jacobian(problem.token_logp, theta, vectorize=True)
    return Terms(problem.token_logp(problem.sampled_from).sum(-1).exp(), logp, ref_logp, scores)


def mean(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """E[x] over the first axis."""
    return torch.tensordot(p, x, dims=1)


def field(c: torch.Tensor, problem: Problem) -> torch.Tensor:
    """E[c s] for a coefficient [count] of the score of each sequence, [rows, vocab]."""
    t = terms(problem)
    return mean(t.p * c, t.score)


def log_ratio(problem: Problem) -> torch.Tensor:
    """l = log pi - log pi_ref of whole sequences, [count]."""
    return terms(problem).log_ratio.sum(-1)


def variance(p: torch.Tensor, x: torch.Tensor) -> float:
    """Variance of x, summed over all axes but the first."""
    return float((p * (x - mean(p, x)).reshape(len(p), -1).square().sum(-1)).sum())


def values(formula: Formula, problem: Problem) -> torch.Tensor:
    """Estimates from whole sequences, [count]; a registered name or a function of two log-probs."""
    fn = get_estimator(formula).fn if isinstance(formula, str) else formula
    t = terms(problem)
    return fn(t.logp.sum(-1), t.ref_logp.sum(-1)).detach()


def differentiated(formula: Formula, problem: Problem, *, per_token: bool = False) -> torch.Tensor:
    """Gradient of the estimate of every sequence, [count, rows, vocab]; ``per_token`` sums over tokens."""
    fn = get_estimator(formula).fn if isinstance(formula, str) else formula
    t = terms(problem)
    leaf = t.logp.clone().requires_grad_()
    x = fn(leaf, t.ref_logp) if per_token else fn(leaf.sum(-1), t.ref_logp.sum(-1))
    (c,) = torch.autograd.grad(x.sum(), leaf)
    return torch.einsum("it,itrv->irv", c, t.scores)


def reverse_kl(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """KL(pi || pi_ref) from the log-probs of all outcomes, over the last axis; 0 log 0 is 0."""
    p = logp.exp()
    return (p * (logp - ref_logp)).where(p > 0, 0.0).sum(-1)


def forward_kl(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """KL(pi_ref || pi) from the log-probs of all outcomes, over the last axis."""
    return reverse_kl(ref_logp, logp)


def exact(
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], problem: Problem
) -> tuple[float, torch.Tensor]:
    """Value and gradient of a function of the log-probs of all sequences under policy and reference."""
    theta = problem.logits.detach().clone().requires_grad_()
    value = objective(problem.token_logp(theta).sum(-1), problem.token_logp(problem.ref_logits).sum(-1))
    (gradient,) = torch.autograd.grad(value, theta)
    return value.item(), gradient


def kl_gradient(problem: Problem) -> torch.Tensor:
    """Gradient of the KL of whole sequences, policy from reference, [rows, vocab]."""
    return exact(reverse_kl, problem)[1]


def every_sequence(problem: Problem, logits: torch.Tensor | None = None) -> Rollout:
    """All sequences as one batch."""
    return problem.rollout(problem.logits if logits is None else logits)


def apart(a: torch.Tensor | float, b: torch.Tensor | float) -> float:
    """Largest absolute difference; NaN becomes infinite."""
    difference = (torch.as_tensor(a, dtype=torch.float64) - torch.as_tensor(b, dtype=torch.float64)).abs()
    return math.inf if difference.isnan().any() else float(difference.max())


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    """Norm of the difference of two vectors over the norm of the right one; NaN becomes infinite."""
    share = float((found - right).norm() / right.norm())
    return math.inf if math.isnan(share) else share


def worst(errors: Iterable[float]) -> float:
    """The largest of several errors; NaN becomes infinite."""
    return max(math.inf if math.isnan(e) else float(e) for e in errors)


def differs(a: torch.Tensor | float, b: torch.Tensor | float, by: float = STRICT) -> float:
    """Error of "a is not b": how far they are from being ``by`` apart."""
    return max(0.0, by - apart(a, b))


def less(a: float, b: float, by: float = STRICT) -> float:
    """Error of "a is less than b": how much is missing."""
    return math.inf if math.isnan(a) or math.isnan(b) else max(0.0, a - b + by)
