"""Appendix J.2: K2 as a policy gradient, which is APA (emapg2026).

Which coefficient a loss puts on the score comes from automatic differentiation of the formulas of table 1,
with the optimal policy in the place of the reference.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form, numbers
from kl_book.ledger.claims.ground.errors import apart, relative, worst
from kl_book.ledger.claims.ground.estimates import full_square, k2
from kl_book.ledger.claims.ground.rollout_texts import missing_half
from kl_book.ledger.claims.ground.rollouts import (
    GROUP_SIZE,
    SIZES,
    expected_reward,
    expected_sum,
    first_logit,
    group,
    kl_to_target,
    log_w,
    logp_slope,
    regularized_gradient,
    reward_gradient,
    rollouts,
    slope_at_target,
    two_answers,
)
from kl_book.ledger.claims.ground.sums import field, kl_gradient, log_ratio, mean, terms
from kl_book.ledger.claims.ground.targets import at_optimum
from kl_companion.tabular import Problem


@claim("EMA-J2-expand+start")
def gradient_of_k2() -> Iterator[Found]:
    """grad of half the square is (l - R + log Z) s; the printed square is twice that."""
    printed, corrected = [], []
    for problem in rollouts():
        wanted, half = kl_to_target(problem)[1], slope_at_target(k2, problem)
        printed.append(relative(field(slope_at_target(full_square, problem), problem), wanted))
        corrected += [apart(half, -log_w(problem)), apart(field(half, problem), wanted)]
    yield from each_form(
        worst(printed),
        worst(corrected),
        counterexample=missing_half(slope_at_target(full_square, two_answers()), two_answers()),
    )


@claim("EMA-J2-expand")
def log_z_inside_the_square() -> Iterator[Found]:
    """log Z is V - KL: the square holds -KL, and its cross term with the score is -2 KL s."""
    printed, corrected = [], []
    for problem in rollouts():
        reward, kl = reward_gradient(problem), kl_gradient(problem)
        for size in SIZES:
            g = group(problem, size)
            apa = g.log_ratio - g.reward + g.value

            def mean_of(c: torch.Tensor, g=g, size=size, problem=problem) -> torch.Tensor:  # type: ignore[no-untyped-def]
                return expected_sum(c, problem, g) / size

            wanted = 2 * (1 - 1 / size) * (kl - reward)
            printed += [relative(mean_of(x), wanted) for x in (2 * (apa + g.kl), 2 * apa + g.kl)]
            corrected += [apart(mean_of(2 * (apa - g.kl)), wanted)]
            corrected.append(apart(mean_of(2 * apa) - 2 * kl / size, wanted))
    g = group(two_answers(), 2)
    apa = g.log_ratio - g.reward + g.value
    right, wrong = (
        first_logit(expected_sum(c, two_answers(), g) / 2) for c in (2 * (apa - g.kl), 2 * apa + g.kl)
    )
    yield from each_form(worst(printed), worst(corrected), right=right, wrong=wrong)


def coefficients(gradient: torch.Tensor, problem: Problem) -> tuple[float, float, float]:
    """(of grad KL, of -grad E[R], what is left) of a gradient, by least squares."""
    basis = torch.stack([kl_gradient(problem).flatten(), -reward_gradient(problem).flatten()], -1)
    found = torch.linalg.lstsq(basis, gradient.flatten()[:, None]).solution[:, 0]
    return float(found[0]), float(found[1]), apart(basis @ found, gradient.flatten())


@claim("EMA-J2-expand+upweights")
def what_the_second_term_does() -> Iterator[Found]:
    """Without it the KL has the weight N/(N - 1) relative to the reward; with it both have 1 - 1/N."""
    printed: list[float] = []
    corrected: list[float] = []
    for problem in rollouts()[1:]:  # with two answers the two gradients are parallel
        for size in SIZES:
            g = group(problem, size)
            apa = logp_slope(k2, g.log_ratio, g.reward - g.value)
            without = coefficients(expected_sum(apa, problem, g) / size, problem)
            whole = logp_slope(k2, g.log_ratio, g.reward - g.value + g.kl)
            with_term = coefficients(expected_sum(whole, problem, g) / size, problem)
            printed.append(float(with_term[0] <= without[0]))
            share = 1 - 1 / size
            corrected += [apart(torch.tensor(without), torch.tensor([1.0, share, 0.0]))]
            corrected += [apart(torch.tensor(with_term), torch.tensor([share, share, 0.0]))]
    g = group(rollouts()[1], 2)
    found = [
        coefficients(
            expected_sum(logp_slope(k2, g.log_ratio, g.reward - g.value + x), rollouts()[1], g) / 2,
            rollouts()[1],
        )
        for x in (torch.zeros_like(g.kl), g.kl)
    ]
    yield from each_form(
        sum(printed) / len(printed),
        worst(corrected),
        number=found[0][0],
        number_2=found[0][1],
        number_3=found[1][0],
        number_4=found[1][1],
        GROUP_SIZE=GROUP_SIZE,
        number_5=GROUP_SIZE / (GROUP_SIZE - 1),
    )


@claim("EMA-J2-apa")
def gradient_of_the_square_with_v() -> Iterator[Found]:
    """Half of its expected gradient is -(R - V) s + grad KL; printed are the whole and a plus."""
    printed, corrected = [], []
    for problem in rollouts():
        reward = field(problem.rewards - expected_reward(problem), problem)
        kl = kl_gradient(problem)
        target = problem.rewards - expected_reward(problem)
        whole, half = (field(logp_slope(f, log_ratio(problem), target), problem) for f in (full_square, k2))
        printed += [relative(reward + kl, x) for x in (whole, half)]
        corrected += [apart(half, kl - reward), apart(half, kl_to_target(problem)[1])]
    small_reward = reward_gradient(two_answers())
    yield from each_form(
        worst(printed),
        worst(corrected),
        first_logit=first_logit(regularized_gradient(two_answers())),
        first_logit_2=first_logit(small_reward + kl_gradient(two_answers())),
    )


@claim("EMA-eq148")
def k2_as_apa() -> Iterator[Found]:
    """Half the square with V = E[R] has the gradient of KL(pi||pi*); the printed square has twice that."""
    printed, corrected = [], []
    for problem in rollouts():
        target = problem.rewards - expected_reward(problem)
        whole, half = (field(logp_slope(f, log_ratio(problem), target), problem) for f in (full_square, k2))
        wanted = kl_to_target(problem)[1]
        printed.append(relative(whole, field(slope_at_target(k2, problem), problem)))
        corrected += [apart(half, wanted), apart(field(slope_at_target(k2, problem), problem), wanted)]
        for size in SIZES:
            g = group(problem, size)
            own = expected_sum(logp_slope(k2, g.log_ratio, g.reward - g.value), problem, g) / size
            corrected.append(apart(own, kl_gradient(problem) - (1 - 1 / size) * reward_gradient(problem)))
    target = two_answers().rewards - expected_reward(two_answers())
    yield from each_form(
        worst(printed),
        worst(corrected),
        counterexample=missing_half(logp_slope(full_square, log_ratio(two_answers()), target), two_answers()),
    )


def off_policy_optimum() -> tuple[float, float]:
    """What K2 leaves at the optimum under another sampler: with V for log Z, with V - KL of a pair."""
    world = at_optimum(two_answers())._replace(behavior_logits=two_answers().logits)
    value = mean(terms(world).p, world.rewards)  # under the sampler: what a group estimates
    g = group(world, 2)
    kept = expected_sum(logp_slope(k2, g.log_ratio, g.reward - g.value + g.kl), world, g) / 2
    return first_logit(field(logp_slope(k2, log_ratio(world), world.rewards - value), world)), first_logit(
        kept
    )


@claim("EMA-eq148+offpolicy")
def the_square_without_a_weight() -> Iterator[Found]:
    """What others showed; computed is whether pi* stays at rest under another sampler."""
    moved, kept = off_policy_optimum()
    yield numbers(kept=abs(kept), moved=moved)
