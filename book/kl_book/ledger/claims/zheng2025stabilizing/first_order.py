"""Sections 2.3 and 2.4: how far the objectives of answers and of tokens agree (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground.calibration import token_ratios
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.surrogates import (
    deltas,
    expected_reward,
    exponent,
    gradient_gap,
    gradient_of,
    lengths,
    not_of_order,
    of_answers,
    of_tokens,
    order_of_gradient,
    order_of_value,
    sampled_by_the_reference,
    sampled_trees,
    token_terms,
    towards,
)
from kl_book.ledger.claims.ground.world import World, each
from kl_book.ledger.claims.ground.worlds import hedge_trees, trees
from kl_companion.tabular import Problem

STEP = 1e-3


def _products(delta: torch.Tensor, degree: int) -> torch.Tensor:
    """Sum of the products of ``degree`` different entries along the last axis: elementary symmetric."""
    every = torch.combinations(torch.arange(delta.shape[-1]), degree)
    return delta[:, every].prod(-1).sum(-1)


def _left_over(problem: Problem) -> torch.Tensor:
    """prod(1 + delta) - 1 - sum delta of every answer, [count]."""
    delta = deltas(problem)
    return (1 + delta).prod(-1) - 1 - delta.sum(-1)


@claim("QW-2.3-product")
def the_product_to_first_order() -> Iterator[Found]:
    """The rest is the sum of products of two and more deltas; it shrinks with the square of the step."""
    powers = []
    for w in each(sampled_trees)():
        delta = deltas(w.problem)
        yield same(_left_over(w.problem), sum(_products(delta, k) for k in range(2, delta.shape[-1] + 1)))
        yield same(w.E((1 + delta).prod(-1)), 1.0)
        powers.append(exponent(lambda h, p=w.problem: float(_left_over(towards(p, h)).norm())))  # type: ignore[misc]
        yield same(powers[-1], 2, by=not_of_order)
    yield numbers(least=min(powers), most=max(powers), product=1.01**1000, linear=1 + 1000 * 0.01)


@claim("QW-2.3-objective")
def the_token_objective_to_first_order() -> Iterator[Found]:
    """At the sampler the two values differ by E[(|y| - 1) R]; beyond this constant the order is two."""
    shares, powers = [], []
    for problem in sampled_trees():
        start = World(towards(problem, 0.0))
        value = expected_reward(start.problem)[0]
        constant = float(of_tokens(start.problem, start.problem.logits)) - value
        yield same(start.E((lengths(problem) - 1) * start.R), constant, "inside")
        powers.append(order_of_value(of_tokens, problem))
        yield same(powers[-1], 2, "inside", by=not_of_order)
        shares.append(abs(constant / value))
    yield printed(max(shares))
    yield numbers(trees=len(shares), least=min(shares), most=max(shares))
    yield numbers(least_power=min(powers), most_power=max(powers))


def _first_order(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[R (1 + sum of delta)], differentiable."""
    return of_tokens(problem, theta) - World(problem).E((lengths(problem) - 1) * problem.rewards)


@claim("QW-first-order")
def the_gradient_to_first_order() -> Iterator[Found]:
    """The gradient of E[R (1 + sum delta)] is eq (4); it is exact at the sampler and off by order one."""
    powers = []
    for w in each(sampled_trees)():
        yield same(gradient_of(_first_order, w.problem), w.E(token_terms(w.problem)))
        yield same(gradient_of(of_answers, w.problem), w.d_reward)
        yield same(gradient_gap(of_tokens, towards(w.problem, 0.0)), 0.0)
        powers.append(order_of_gradient(of_tokens, w.problem))
        yield same(powers[-1], 1, by=not_of_order)
    yield numbers(least=min(powers), most=max(powers))


def _cosine(problem: Problem) -> float:
    """Cosine of the token gradient with that of the expected reward."""
    update, wanted = gradient_of(of_tokens, problem), expected_reward(problem)[1]
    return float((update * wanted).sum() / (update.norm() * wanted.norm()))


@claim("QW-2.3-improve")
def a_step_along_the_token_gradient_helps() -> Iterator[Found]:
    """Near the sampler a small step raises the expected reward, as much as one along its own gradient."""
    for problem in sampled_trees():
        near = towards(problem, 2.0**-6)
        before, gradient = expected_reward(near)
        moved = near._replace(logits=near.logits + STEP * gradient_of(of_tokens, near))
        gain = expected_reward(moved)[0] - before
        yield less(0.0, gain, by=1e-12)
        yield less(abs(gain / (STEP * float(gradient.square().sum())) - 1), 0.05, by=0.0)
        yield less(0.99, _cosine(near), by=0.0)
    far = [_cosine(towards(sampled_by_the_reference(p), 1.0)) for p in hedge_trees()[::2]]
    yield numbers(trees=len(far), least=min(far))


def _parts(w: World) -> tuple[torch.Tensor, torch.Tensor]:
    """Discrepancy of the engines and staleness of every token, as log-ratios, [count, length]."""
    older = w.problem.token_logp(w.problem.ref_logits)
    return w.t.ref_logp - w.problem.token_logp(w.problem.sampled_from), w.t.logp - older


@claim("QW-abs-conditions")
def only_their_product_counts() -> Iterator[Found]:
    """Both small is enough; needed is that the product of both is near 1, and they may cancel."""
    exact_anyway, sizes = [], []
    for w in each(sampled_trees, trees)():
        w = w.replace(behavior_logits=w.problem.logits)  # the older policy is elsewhere
        sizes.append(min(float(part.abs().max().exp()) for part in _parts(w)))
        exact_anyway.append(sizes[-1] > 1.1 and gradient_gap(of_tokens, w.problem) < 1e-12)
        yield same(w.E(token_terms(w.problem)), w.d_reward, "corrected")
    for problem in sampled_trees():  # both shrink together, or one of them alone
        yield same(order_of_gradient(of_tokens, problem), 1, "corrected", by=not_of_order)
        fresh = problem._replace(ref_logits=problem.logits)  # no staleness, a discrepancy that stays
        yield differs(gradient_gap(of_tokens, fresh), 0.0, "corrected")
    yield printed(share_of_cases(exact_anyway))
    near = towards(sampled_trees()[2], 0.1)
    error = gradient_gap(of_tokens, near) / float(expected_reward(near)[1].norm())
    yield numbers(trees=len(exact_anyway), least=min(sizes), error=error)
    yield numbers(ratio=float(token_ratios(near).log().abs().max().exp()))


@claim("QW-eq5", over=each(sampled_trees))
def discrepancy_times_staleness(w: World) -> Iterator[Found]:
    """Policy over sampler is old policy over sampler times policy over old policy, for every token."""
    discrepancy, staleness = (part.exp() for part in _parts(w))
    yield same(token_ratios(w.problem), discrepancy * staleness)
    yield differs(discrepancy, 1.0)
    yield differs(staleness, 1.0)
