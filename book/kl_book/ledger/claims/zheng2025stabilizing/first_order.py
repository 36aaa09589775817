"""Sections 2.3 and 2.4: how far the objectives of answers and of tokens agree (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import token_ratios
from kl_book.ledger.claims.ground.errors import apart, differs, less, violation, worst
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sums import mean, terms
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
from kl_book.ledger.claims.ground.worlds import hedge_trees, trees
from kl_companion.tabular import Problem

STEP = 1e-3


def _products(delta: torch.Tensor, degree: int) -> torch.Tensor:
    """Sum of the products of ``degree`` different entries along the last axis: elementary symmetric."""
    every = torch.combinations(torch.arange(delta.shape[-1]), degree)
    return delta[:, every].prod(-1).sum(-1)


def _left_over(problem: Problem, share: float) -> float:
    """Norm of prod(1 + delta) - 1 - sum delta over all answers."""
    delta = deltas(towards(problem, share))
    return float(((1 + delta).prod(-1) - 1 - delta.sum(-1)).norm())


@claim("QW-2.3-product")
def the_product_to_first_order() -> Iterator[Found]:
    """The rest is the sum of products of two and more deltas; it shrinks with the square of the step."""
    errors, powers = [], []
    for problem in sampled_trees():
        delta, p = deltas(problem), terms(problem).p
        rest = sum(_products(delta, k) for k in range(2, delta.shape[-1] + 1))
        errors.append(apart((1 + delta).prod(-1) - 1 - delta.sum(-1), rest))
        errors.append(apart(p @ (1 + delta).prod(-1), 1.0))
        powers.append(exponent(lambda h, world=problem: _left_over(world, h)))  # type: ignore[misc]
        errors.append(not_of_order(powers[-1], 2))
    yield from each_form(
        worst(errors),
        min_powers=min(powers),
        max_powers=max(powers),
        number=1.01**1000,
        number_2=1 + 1000 * 0.01,
    )


@claim("QW-2.3-objective")
def the_token_objective_to_first_order() -> Iterator[Found]:
    """At the sampler the two values differ by E[(|y| - 1) R]; beyond this constant the order is two."""
    printed, inside, powers = [], [], []
    for problem in sampled_trees():
        start = towards(problem, 0.0)
        value = expected_reward(start)[0]
        constant = float(of_tokens(start, start.logits)) - value
        by_hand = terms(start).p @ ((lengths(start) - 1) * start.rewards)
        printed.append(abs(constant / value))
        powers.append(order_of_value(of_tokens, problem))
        inside += [apart(by_hand, constant), not_of_order(powers[-1], 2)]
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        number_of_printed=len(printed),
        min_printed=min(printed),
        max_printed=max(printed),
        min_powers=min(powers),
        max_powers=max(powers),
    )


def _first_order(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[R (1 + sum of delta)], differentiable."""
    return of_tokens(problem, theta) - terms(problem).p @ ((lengths(problem) - 1) * problem.rewards)


@claim("QW-first-order")
def the_gradient_to_first_order() -> Iterator[Found]:
    """The gradient of E[R (1 + sum delta)] is eq (4); it is exact at the sampler and off by order one."""
    errors, powers = [], []
    for problem in sampled_trees():
        errors.append(apart(gradient_of(_first_order, problem), mean(terms(problem).p, token_terms(problem))))
        errors.append(apart(gradient_of(of_answers, problem), expected_reward(problem)[1]))
        start = towards(problem, 0.0)
        errors.append(apart(gradient_of(of_tokens, start), expected_reward(start)[1]))
        powers.append(order_of_gradient(of_tokens, problem))
        errors.append(not_of_order(powers[-1], 1))
    yield from each_form(worst(errors), min_powers=min(powers), max_powers=max(powers))


def _cosine(problem: Problem) -> float:
    """Cosine of the token gradient with that of the expected reward."""
    found, wanted = gradient_of(of_tokens, problem), expected_reward(problem)[1]
    return float((found * wanted).sum() / (found.norm() * wanted.norm()))


@cache
def _cosines(share: float) -> tuple[float, ...]:
    """`_cosine` on the trees of the list for hedges, sampled by their reference."""
    return tuple(_cosine(towards(sampled_by_the_reference(p), share)) for p in hedge_trees()[::2])


@claim("QW-2.3-improve")
def a_step_along_the_token_gradient_helps() -> Iterator[Found]:
    """Near the sampler a small step raises the expected reward, as much as one along its own gradient."""
    errors = []
    for problem in sampled_trees():
        near = towards(problem, 2.0**-6)
        direction = gradient_of(of_tokens, near)
        after = expected_reward(near._replace(logits=near.logits + STEP * direction))[0]
        gained = after - expected_reward(near)[0]
        wanted = STEP * float(expected_reward(near)[1].square().sum())
        errors += [less(0.0, gained, by=1e-12), violation(abs(gained / wanted - 1) - 0.05)]
        errors.append(violation(0.99 - _cosine(near)))
    far = _cosines(1.0)
    yield from each_form(worst(errors), number_of_far=len(far), min_far=min(far))


def _cancelling(problem: Problem) -> Problem:
    """The sampler equals the policy, and the older policy of the training engine is elsewhere."""
    return problem._replace(behavior_logits=problem.logits)


def _largest(log_ratio: torch.Tensor) -> float:
    """Largest ratio of a token, or its inverse."""
    return float(log_ratio.abs().max().exp())


@claim("QW-abs-conditions")
def only_their_product_counts() -> Iterator[Found]:
    """Both small is enough; needed is that the product of both is near 1, and they may cancel."""
    exact_anyway, sizes, corrected = [], [], []
    for problem in (*sampled_trees(), *trees()):
        world = _cancelling(problem)
        discrepancy = terms(world).ref_logp - world.token_logp(world.sampled_from)
        staleness = terms(world).log_ratio
        sizes += [_largest(discrepancy), _largest(staleness)]
        large = min(sizes[-2:]) > 1.1
        exact_anyway.append(large and gradient_gap(of_tokens, world) < 1e-12)
        wanted = expected_reward(world)[1]
        corrected.append(apart(mean(terms(world).p, token_terms(world)), wanted))
    for problem in sampled_trees():  # both shrink together, or one of them alone
        corrected.append(not_of_order(order_of_gradient(of_tokens, problem), 1))
        fresh = problem._replace(ref_logits=problem.logits)  # no staleness, a discrepancy that stays
        corrected.append(differs(gradient_gap(of_tokens, fresh), 0.0))
    yield from each_form(
        share_of_cases(exact_anyway),
        worst(corrected),
        number_of_exact_anyway=len(exact_anyway),
        min_sizes=min(sizes),
        error_of_a_discrepancy=_error_of_a_discrepancy(),
        largest=_largest(token_ratios(_nearby()).log()),
    )


def _nearby() -> Problem:
    """A tree of up to three tokens, a tenth of the way from the sampler."""
    return towards(sampled_trees()[2], 0.1)


def _error_of_a_discrepancy() -> float:
    """Relative error of the token gradient there."""
    return gradient_gap(of_tokens, _nearby()) / float(expected_reward(_nearby())[1].norm())


@claim("QW-eq5")
def discrepancy_times_staleness() -> Iterator[Found]:
    """Policy over sampler is old policy over sampler times policy over old policy, for every token."""
    errors = []
    for problem in sampled_trees():
        old = problem.token_logp(problem.ref_logits)
        discrepancy = (terms(problem).ref_logp - problem.token_logp(problem.sampled_from)).exp()
        staleness = (terms(problem).logp - old).exp()
        errors.append(apart(token_ratios(problem), discrepancy * staleness))
        errors += [differs(discrepancy, 1.0), differs(staleness, 1.0)]
    yield from each_form(worst(errors))
