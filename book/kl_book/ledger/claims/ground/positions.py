"""One token at a given prefix: worlds, and the mean value and gradient of an estimate there."""

from __future__ import annotations

from functools import cache

import torch

from kl_book.ledger.claims.ground import errors, worlds
from kl_book.ledger.claims.ground.estimates import Estimate
from kl_book.ledger.claims.ground.sums import (
    exact,
    forward_kl,
    half_square,
    ref_ratio,
    reverse_kl,
    terms,
    variance,
)
from kl_companion.tabular import Problem, bandit

SMALLEST_BIAS = 1e-8  # of a biased estimate, in every single world, that nearest to the reference included
STEP = 2.0**-13  # of a log-prob, to see whether an estimate reads it


OBJECTIVES = {
    "reverse": reverse_kl,
    "forward": forward_kl,
    "half square": half_square,
    "zero": lambda logp, ref_logp: 0 * logp.sum(),
}


@cache
def positions() -> tuple[Problem, ...]:
    """One token at a given prefix: near to and far from the reference, and with many tokens."""
    far = worlds.two_policies((0.999, 0.001), (0.5, 0.5))
    return (*worlds.bandits(), far, bandit(12, seed=3, scale=4.0), bandit(40, seed=5))


@cache
def equal_policies() -> tuple[Problem, ...]:
    """One token, policy = reference."""
    return worlds.two_policies((0.75, 0.25), (0.75, 0.25)), bandit(6, seed=8, scale=0.0)


def moments(estimate: Estimate, problem: Problem) -> tuple[float, torch.Tensor]:
    """Mean of an estimate and of its gradient over the sampled token; the gradient like the logits."""
    t = terms(problem)
    leaf = t.logp[:, 0].clone().requires_grad_()
    x = estimate(leaf, t.ref_logp[:, 0])
    (c,) = torch.autograd.grad((t.p * x).sum(), leaf)
    return float(t.p @ x.detach()), torch.einsum("j,jrv->rv", c, t.scores[:, 0])


def reference_logps_read(estimate: Estimate, problem: Problem) -> int:
    """How many of the reference's log-probs the estimate of one sampled token depends on, at most.

    The step is too small to change a head: choosing it looks at all V logits, but keeps k.
    """
    t = terms(problem)
    logp, ref = t.logp[:, 0], t.ref_logp[:, 0]
    moved = torch.stack([estimate(logp, r) for r in ref + STEP * torch.eye(len(ref), dtype=ref.dtype)])
    return int((moved != estimate(logp, ref)).sum(0).max())


def every_position() -> tuple[Problem, ...]:
    """`positions`, and policies that equal the reference."""
    return positions() + equal_policies()


def bias_of_value_and_gradient(estimate: Estimate, problem: Problem, target: str = "reverse") -> float:
    """Error of "value and gradient are unbiased"."""
    value, gradient = exact(OBJECTIVES[target], problem)
    found = moments(estimate, problem)
    return max(errors.apart(found[0], value), errors.apart(found[1], gradient))


def sampled_values_and_gradients(estimate: Estimate, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and gradient for every token that may be sampled, [count] and [count, rows, vocab]."""
    t = terms(problem)
    logp, ref_logp = t.logp[:, 0], t.ref_logp[:, 0]
    slopes = torch.autograd.functional.jacobian(lambda x: estimate(x, ref_logp), logp, vectorize=True)
    return estimate(logp, ref_logp), torch.einsum("yj,jrv->yrv", slopes, t.scores[:, 0])


def baseline_gain(more: torch.Tensor, less: torch.Tensor, problem: Problem) -> tuple[float, float, float]:
    """Variances with two coefficients of the score, and E[(more^2 - less^2) |s|^2]."""
    t = terms(problem)
    before, after = (variance(t.p, c[:, None, None] * t.score) for c in (more, less))
    return before, after, float(t.p @ ((more**2 - less**2) * t.score.square().sum((-2, -1))))


def baseline_of_one(problem: Problem) -> tuple[float, float, float]:
    """Variance of -w s, that of (1 - w) s, and 2 E_ref|s|^2 - E_pi|s|^2."""
    w = ref_ratio(problem)
    return baseline_gain(-w, 1 - w, problem)


def importance_weighted(
    estimate: Estimate, problem: Problem, clip: tuple[float, float] | None = None
) -> Estimate:
    """sg(s) times the estimate, with s = pi/mu, clipped or not, and 0 for what mu never samples."""
    behavior = problem.sampled_from[0].log_softmax(-1)
    s = (problem.logits[0].log_softmax(-1) - behavior).exp()
    s = s.clamp(*clip) if clip else s
    return lambda logp, ref_logp: torch.where(behavior > -torch.inf, s, 0.0) * estimate(logp, ref_logp)
