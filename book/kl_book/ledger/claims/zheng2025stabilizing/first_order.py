"""Sections 2.3 and 2.4: how far the objectives of answers and of tokens agree (zheng2025stabilizing)."""

from __future__ import annotations

from functools import cache

import torch

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
from kl_book.ledger.claims.ledger import Evidence, claim
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
def the_product_to_first_order() -> Evidence:
    """The rest is the sum of products of two and more deltas; it shrinks with the square of the step."""
    errors, powers = [], []
    for problem in sampled_trees():
        delta, p = deltas(problem), terms(problem).p
        rest = sum(_products(delta, k) for k in range(2, delta.shape[-1] + 1))
        errors.append(apart((1 + delta).prod(-1) - 1 - delta.sum(-1), rest))
        errors.append(apart(p @ (1 + delta).prod(-1), 1.0))
        powers.append(exponent(lambda h, world=problem: _left_over(world, h)))  # type: ignore[misc]
        errors.append(not_of_order(powers[-1], 2))
    return Evidence(
        worst(errors),
        note=(
            f"Measured exponents: {min(powers):.3f} to {max(powers):.3f}. The order is that at a fixed "
            r"length: the rest has $T(T-1)/2$ products of two, and is small only where $T \delta$ is. With "
            rf"$\delta_t = 0.01$ at each of 1,000 tokens the product is {1.01**1000:.0f}, and "
            rf"$1 + \sum \delta_t$ is {1 + 1000 * 0.01:.0f}."
        ),
    )


@claim("QW-2.3-objective")
def the_token_objective_to_first_order() -> Evidence:
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
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        unit="relative difference",
        condition=r"a constant that does not depend on $\theta$ is left aside, so that slopes are compared",
        given=r"stated in 2.3: the derivation under eq (4) compares gradients, and drops the constant there",
        counterexample=(
            r"policy equal to the sampler: $J^{token}$ is $\E[|y| R]$ and $J^{seq}$ is $\E[R]$; on "
            f"{len(printed)} trees of two to four tokens they differ by {min(printed):.0%} to "
            f"{max(printed):.0%} of $J^{{seq}}$"
        ),
        practice=(
            r"The surrogate's value in a log is not the expected reward: it is off by $\E[(|y| - 1) R]$. "
            f"Beyond this constant the remainder has the exponents {min(powers):.3f} to {max(powers):.3f}."
        ),
    )


def _first_order(problem: Problem, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[R (1 + sum of delta)], differentiable."""
    return of_tokens(problem, theta) - terms(problem).p @ ((lengths(problem) - 1) * problem.rewards)


@claim("QW-first-order")
def the_gradient_to_first_order() -> Evidence:
    """The gradient of E[R (1 + sum delta)] is eq (4); it is exact at the sampler and off by order one."""
    errors, powers = [], []
    for problem in sampled_trees():
        errors.append(apart(gradient_of(_first_order, problem), mean(terms(problem).p, token_terms(problem))))
        errors.append(apart(gradient_of(of_answers, problem), expected_reward(problem)[1]))
        start = towards(problem, 0.0)
        errors.append(apart(gradient_of(of_tokens, start), expected_reward(start)[1]))
        powers.append(order_of_gradient(of_tokens, problem))
        errors.append(not_of_order(powers[-1], 1))
    return Evidence(
        worst(errors),
        note=(
            r"What is dropped, products $\delta_i \delta_j$ in the objective, has a gradient of first order "
            rf"in $\delta$: measured exponents {min(powers):.3f} to {max(powers):.3f}. The gradients are "
            r"equal at $\pi = \mu$, and their difference grows in proportion to the distance."
        ),
    )


def _cosine(problem: Problem) -> float:
    """Cosine of the token gradient with that of the expected reward."""
    found, wanted = gradient_of(of_tokens, problem), expected_reward(problem)[1]
    return float((found * wanted).sum() / (found.norm() * wanted.norm()))


@cache
def _cosines(share: float) -> tuple[float, ...]:
    """`_cosine` on the trees of the list for hedges, sampled by their reference."""
    return tuple(_cosine(towards(sampled_by_the_reference(p), share)) for p in hedge_trees()[::2])


@claim("QW-2.3-improve")
def a_step_along_the_token_gradient_helps() -> Evidence:
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
    return Evidence(
        worst(errors),
        note=(
            f"Far from the sampler as well: on {len(far)} trees of two and three tokens, with log-ratios of "
            f"tokens up to 4, the cosine of the two gradients is {min(far):.2f} or more."
        ),
    )


def _cancelling(problem: Problem) -> Problem:
    """The sampler equals the policy, and the older policy of the training engine is elsewhere."""
    return problem._replace(behavior_logits=problem.logits)


def _largest(log_ratio: torch.Tensor) -> float:
    """Largest ratio of a token, or its inverse."""
    return float(log_ratio.abs().max().exp())


@claim("QW-abs-conditions")
def only_their_product_counts() -> Evidence:
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
    return Evidence(
        share_of_cases(exact_anyway),
        worst(corrected),
        unit="share of cases",
        condition="discrepancy and staleness do not offset each other",
        correction=(
            r"What counts is the distance of $\pi_\theta$ from $\mu_{old}$, the product of both ratios: the "
            "error of the gradient is of first order in it. That both are small is enough. It is not "
            "needed, as neither eq (1) nor eq (3) contains the policy between them."
        ),
        counterexample=(
            f"the {len(exact_anyway)} trees tried, with a sampler equal to the policy and an older policy "
            f"elsewhere: both factors reach {min(sizes):.1f} or more, and the token gradient is that of the "
            "expected reward"
        ),
        practice=(
            r"A log should show the distance from $\pi_\theta$ to $\mu_{old}$ beside its two parts. With a "
            r"discrepancy alone, no staleness, the error stays: "
            f"{_error_of_a_discrepancy():.0%} of the gradient where the ratios of tokens reach "
            f"{_largest(token_ratios(_nearby()).log()):.2f}."
        ),
    )


def _nearby() -> Problem:
    """A tree of up to three tokens, a tenth of the way from the sampler."""
    return towards(sampled_trees()[2], 0.1)


def _error_of_a_discrepancy() -> float:
    """Relative error of the token gradient there."""
    return gradient_gap(of_tokens, _nearby()) / float(expected_reward(_nearby())[1].norm())


@claim("QW-eq5")
def discrepancy_times_staleness() -> Evidence:
    """Policy over sampler is old policy over sampler times policy over old policy, for every token."""
    errors = []
    for problem in sampled_trees():
        old = problem.token_logp(problem.ref_logits)
        discrepancy = (terms(problem).ref_logp - problem.token_logp(problem.sampled_from)).exp()
        staleness = (terms(problem).logp - old).exp()
        errors.append(apart(token_ratios(problem), discrepancy * staleness))
        errors += [differs(discrepancy, 1.0), differs(staleness, 1.0)]
    return Evidence(worst(errors))
