"""Appendix J up to J.1: the optimal policy as a target, and what a group knows of it (emapg2026)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.estimates import SAMPLED, k1
from kl_book.ledger.claims.ground.rollouts import (
    SIZES,
    expected_reward,
    expected_sum,
    group,
    kl_to_target,
    log_w,
    log_z,
    regularized_gradient,
    rollouts,
    slope_at_target,
    two_answers,
)
from kl_book.ledger.claims.ground.sums import exact, field, kl_gradient, log_ratio, mean, reverse_kl, terms
from kl_book.ledger.claims.ground.targets import at_optimum
from kl_book.ledger.claims.ground.worlds import bandits


@claim("EMA-eq141-142")
def the_optimum_as_a_target() -> Iterator[Found]:
    """KL(pi||pi*) = E[-log w] = log Z - (E[R] - KL(pi||ref)), with gradient grad KL - grad E[R], 0 at pi*."""
    errors = []
    for problem in rollouts():
        p, (value, gradient) = terms(problem).p, kl_to_target(problem)
        kept = float(expected_reward(problem)) - exact(reverse_kl, problem)[0]
        errors += [apart(mean(p, log_w(problem).exp()), 1.0), apart(-mean(p, log_w(problem)), value)]
        errors += [apart(log_z(problem) - kept, value), apart(regularized_gradient(problem), gradient)]
    for problem in bandits():
        best = at_optimum(problem)
        errors += [apart(log_w(best), 0.0), apart(regularized_gradient(best), 0.0)]
    yield from each_form(worst(errors))


@claim("EMA-eq141-142+beta")
def beta_in_the_rewards() -> Iterator[Found]:
    """With R/beta the target is the optimum of E[R] - beta KL; the gradient is 1/beta of that objective's."""
    errors = []
    for problem in bandits():
        distances = []
        for beta in (0.1, 0.5, 2.0, 10.0):
            scaled = problem._replace(rewards=problem.rewards / beta)
            errors.append(apart(beta * kl_to_target(scaled)[1], regularized_gradient(problem, beta)))
            best = at_optimum(scaled)._replace(rewards=problem.rewards)
            errors.append(apart(regularized_gradient(best, beta), 0.0))
            distances.append(exact(reverse_kl, best)[0])
        errors += [less(b, a, by=1e-9) for a, b in itertools.pairwise(distances)]
    yield from each_form(worst(errors))


@claim("EMA-eq141-142+every")
def every_estimator_as_a_policy_gradient() -> Iterator[Found]:
    """As losses K2, K3++ and K4 minimize KL(pi||pi*), K3 and K5 KL(pi*||pi); K1 does it in the reward."""
    forward, errors = ("K3", "K5"), []
    for problem in rollouts():
        for name in SAMPLED:
            c = -log_w(problem) if name == "K1" else slope_at_target(SAMPLED[name], problem)
            errors.append(apart(field(c, problem), kl_to_target(problem, forward=name in forward)[1]))
        errors.append(apart(field(slope_at_target(k1, problem), problem), 0.0))
    yield from each_form(worst(errors))


@claim("EMA-eq143-144")
def the_partition_function_of_a_group() -> Iterator[Found]:
    """The estimate of Z is unbiased, its log too low on average; Jensen's bound holds in every group."""
    errors = []
    for problem in rollouts():
        best_bound = float(expected_reward(problem)) - exact(reverse_kl, problem)[0]
        low = [float(log_z(problem))]
        for size in (3, 2, 1):
            g = group(problem, size)
            errors.append(apart(g.expect(g.log_z.exp()), log_z(problem).exp()))
            errors.append(violation(float((g.value - g.kl - g.log_z).max()) - 1e-12))
            errors.append(apart(g.expect(g.value - g.kl), best_bound))
            low.append(g.expect(g.log_z))
        errors += [less(b, a) for a, b in itertools.pairwise(low)]
        errors.append(apart(low[-1], best_bound))  # at N = 1 bound and estimate are one
    means = [group(two_answers(), n).expect(group(two_answers(), n).log_z) for n in (1, 2, 3)]
    said = ", ".join(f"{m:.3f}" for m in means)
    yield from each_form(worst(errors), said=said, float=float(log_z(two_answers())))


@claim("EMA-eq145")
def value_and_kl_as_expectations() -> Iterator[Found]:
    """Eq (144) is V - KL of the group's own means; with their expectations it is another number."""
    printed, corrected = [], []
    for problem in rollouts():
        value, kl = float(expected_reward(problem)), exact(reverse_kl, problem)[0]
        for size in SIZES:
            g = group(problem, size)
            bound = (g.reward - g.log_ratio).sum(-1, keepdim=True) / size
            printed.append(apart(bound, value - kl))
            corrected += [apart(bound, g.value - g.kl), apart(g.expect(g.value), value)]
            corrected += [
                apart(g.expect(g.kl), kl),
                apart(expected_sum(g.kl, problem, g), kl_gradient(problem)),
            ]
    both = float((two_answers().rewards - log_ratio(two_answers()))[0])
    number = float(expected_reward(two_answers())) - exact(reverse_kl, two_answers())[0]
    yield from each_form(worst(printed), worst(corrected), both=both, number=number)
