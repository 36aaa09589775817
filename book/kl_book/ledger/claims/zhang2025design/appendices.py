"""Remark 3.8, appendices B and C: the natural gradient, and baselines of a state (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, less, observed, same
from kl_book.ledger.claims.ground.anchors import fisher
from kl_book.ledger.claims.ground.sequences import values_of_prefixes
from kl_book.ledger.claims.ground.sums import exact, field, forward_kl, reverse_kl, terms
from kl_book.ledger.claims.ground.unnormalized import BETA, OldMeasure, slopes
from kl_book.ledger.claims.ground.updates import every_token, token_field, utility_gradient
from kl_book.ledger.claims.ground.worlds import bandits, trees
from kl_companion.tabular import Problem

STRENGTHS = (10.0, 100.0, 1000.0)  # of beta


@claim("RPG-eqB.1", over=lambda: [*bandits(), *trees()[:2]])
def the_kl_to_second_order(problem: Problem) -> Iterator[Found]:
    """At the policy itself its value and gradient vanish and its Hessian is the Fisher matrix, either way."""
    theta = problem.logits.detach()
    here = problem.token_logp(theta).sum(-1)
    for kl in (forward_kl, reverse_kl):

        def distance(flat: torch.Tensor) -> torch.Tensor:
            return kl(problem.token_logp(flat.view_as(theta)).sum(-1), here)  # noqa: B023 - called at once

        yield same(distance(theta.flatten()), 0.0)
        yield same(slopes(distance, theta.flatten()), 0.0)
        yield same(torch.autograd.functional.hessian(distance, theta.flatten()), fisher(problem))
    at_the_policy = OldMeasure(problem._replace(behavior_logits=theta))
    yield same(at_the_policy.d_objective("FKL"), utility_gradient(problem))


@claim("RPG-eqB.5", over=bandits)
def the_step_of_the_local_surrogate(problem: Problem) -> Iterator[Found]:
    """With one logit fixed F has an inverse, and the step is (R_a - R_fixed) / beta by hand."""
    matrix, gradient = fisher(problem)[:-1, :-1], utility_gradient(problem)[0, :-1]
    step = torch.linalg.solve(matrix, gradient) / BETA
    yield same(gradient - BETA * matrix @ step, 0.0)
    yield same(step, (problem.rewards[:-1] - problem.rewards[-1]) / BETA)
    yield same(slopes(lambda x: gradient @ x - BETA / 2 * x @ matrix @ x, step), 0.0)


def _remaining(problem: Problem, step: torch.Tensor, beta: float, *, forward: bool) -> float:
    """Gradient of E[R] - beta KL after a step, relative to that of E[R] before it.

    The KL is that between the policy before the step, held fixed, and the policy.
    """
    fixed = problem.token_logp(problem.logits).sum(-1)
    kl = forward_kl if forward else reverse_kl
    there = problem._replace(logits=problem.logits + step.view_as(problem.logits))
    left = exact(lambda p, _: p.exp() @ problem.rewards - beta * kl(p, fixed), there)[1]
    return float(left.norm() / field(problem.rewards, problem).norm())


@claim("RPG-rem3.8", over=lambda: (*bandits()[3:], *trees()))
def natural_gradient_is_the_step_of_the_local_model(problem: Problem) -> Iterator[Found]:
    """With J linear and the KL quadratic, the best step is the natural gradient over beta."""
    inverse = torch.linalg.pinv(fisher(problem), rtol=1e-10, hermitian=True)
    natural = inverse @ field(problem.rewards, problem).flatten()
    reward = utility_gradient(problem).flatten()
    yield same(reward - BETA * fisher(problem) @ (natural / BETA), 0.0)
    for forward in (True, False):
        left = [_remaining(problem, natural / beta, beta, forward=forward) for beta in STRENGTHS]
        for before, after in pairwise(left):
            yield less(after, 0.2 * before + 1e-9, by=0.0)
    yield observed(reward @ natural / (reward.norm() * natural.norm()))


# baselines of a state, appendix C.1


def _baseline(problem: Problem) -> torch.Tensor:
    """A number for every prefix, at each of the tokens that follow it, [count, length]."""
    per_prefix = torch.arange(len(problem.logits)).double().cos() + 2.0
    return per_prefix[problem.rows] * problem.completion_mask


@claim("RPG-C1-baseline", over=trees)
def a_baseline_of_the_prefix_has_no_effect(problem: Problem) -> Iterator[Found]:
    """E sum b(s_t) score_t = 0, for any numbers b and for the true values of the prefixes."""
    reward = every_token(problem, problem.rewards)
    value = values_of_prefixes(problem, reward)[problem.rows] * problem.completion_mask
    for b in (_baseline(problem), value):
        yield same(token_field(problem, b), 0.0)
        yield same(token_field(problem, reward - b), utility_gradient(problem))


@claim("RPG-eqC.2", over=trees)
def the_loss_with_a_detached_advantage(problem: Problem) -> Iterator[Found]:
    """Differentiated on samples of the policy, it has minus the gradient of the expected reward."""
    advantage = every_token(problem, problem.rewards) - _baseline(problem)
    leaf = terms(problem).logp.clone().requires_grad_()
    (slope,) = torch.autograd.grad(-(advantage * leaf).sum(), leaf)
    yield same(token_field(problem, slope), -utility_gradient(problem))
