"""Appendix J.2: K2 as a policy gradient, which is APA (emapg2026).

Which coefficient a loss puts on the score comes from automatic differentiation of the formulas of table 1,
with the optimal policy in the place of the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kl_companion.claims.emapg2026.policy_gradients import WORLD, expected_reward, regularized
from kl_companion.claims.emapg2026.rollout_groups import (
    SIZES,
    at_target,
    first,
    group,
    log_w,
    log_z,
    reward_gradient,
    rollouts,
    slope,
    small,
    summed,
    to_target,
)
from kl_companion.claims.emapg2026.table_one import k2
from kl_companion.claims.emapg2026.weights import at_optimum
from kl_companion.claims.ledger import Evidence, claim
from kl_companion.claims.off_policy import sampled_elsewhere
from kl_companion.claims.worlds import apart, exact, field, kl_gradient, less, log_ratio, mean, terms, worst
from kl_companion.tabular import Problem

HALF = "the 1/2 of K2"


def square(logp: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """(log w)^2, without the half of K2."""
    return (logp - target) ** 2


def twice(printed: torch.Tensor, problem: Problem) -> str:
    """The counterexample of a missing half."""
    return (
        f"{WORLD}: the printed square has the expected gradient {first(field(printed, problem)):.4f}, "
        f"KL(pi||pi*) {first(to_target(problem)[1]):.4f}"
    )


@claim("EMA-J2-expand+start")
def gradient_of_k2() -> Evidence:
    """grad of half the square is (l - R + log Z) s; the printed square is twice that."""
    printed, corrected = [], []
    for problem in rollouts():
        wanted, half = to_target(problem)[1], at_target(k2, problem)
        printed.append(apart(at_target(square, problem), half))
        printed.append(apart(field(at_target(square, problem), problem), wanted))
        corrected += [apart(half, -log_w(problem)), apart(field(half, problem), wanted)]
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq80",
        correction=f"grad (1/2) (...)^2: {HALF} belongs on both sides",
        counterexample=twice(at_target(square, small()), small()),
    )


@claim("EMA-J2-expand")
def log_z_inside_the_square() -> Evidence:
    """log Z is V - KL: the square holds -KL, and its cross term with the score is -2 KL s."""
    printed, corrected = [], []
    for problem in rollouts():
        reward, kl = reward_gradient(problem), kl_gradient(problem)
        for size in SIZES:
            g = group(problem, size)
            apa = g.log_ratio - g.reward + g.value

            def mean_of(c: torch.Tensor, g=g, size=size, problem=problem) -> torch.Tensor:  # type: ignore[no-untyped-def]
                return summed(c, problem, g) / size

            wanted = 2 * (1 - 1 / size) * (kl - reward)
            printed += [apart(mean_of(2 * (apa + g.kl)), wanted), apart(mean_of(2 * apa + g.kl), wanted)]
            printed.append(apart(mean_of(2 * (apa + g.kl)), mean_of(2 * apa + g.kl)))
            corrected += [apart(mean_of(2 * (apa - g.kl)), wanted)]
            corrected.append(apart(mean_of(2 * apa) - 2 * kl / size, wanted))
    g = group(small(), 2)
    apa = g.log_ratio - g.reward + g.value
    right, wrong = (first(summed(c, small(), g) / 2) for c in (2 * (apa - g.kl), 2 * apa + g.kl))
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq143-144",
        correction=(
            "grad (l - (R - V) - KL)^2 = grad (l - (R - V))^2 - 2 KL grad log pi: V - KL stands for log Z, "
            "and a square has a factor 2"
        ),
        counterexample=(
            f"{WORLD}, N = 2, the square with V - KL for log Z: expected gradient {right:.4f}; the printed "
            f"split has {wrong:.4f}"
        ),
    )


def coefficients(gradient: torch.Tensor, problem: Problem) -> tuple[float, float, float]:
    """(of grad KL, of -grad E[R], what is left) of a gradient, by least squares."""
    basis = torch.stack([kl_gradient(problem).flatten(), -reward_gradient(problem).flatten()], -1)
    found = torch.linalg.lstsq(basis, gradient.flatten()[:, None]).solution[:, 0]
    return float(found[0]), float(found[1]), apart(basis @ found, gradient.flatten())


@claim("EMA-J2-expand+upweights")
def what_the_second_term_does() -> Evidence:
    """Without it the KL has the weight N/(N - 1) relative to the reward; with it both have 1 - 1/N."""
    printed, corrected = [], []
    for problem in rollouts()[1:]:  # with two answers the two gradients are parallel
        for size in SIZES:
            g = group(problem, size)
            apa = slope(k2, g.log_ratio, g.reward - g.value)
            without = coefficients(summed(apa, problem, g) / size, problem)
            whole = slope(k2, g.log_ratio, g.reward - g.value + g.kl)
            with_term = coefficients(summed(whole, problem, g) / size, problem)
            printed.append(less(without[0], with_term[0]))
            share = 1 - 1 / size
            corrected += [apart(torch.tensor(without), torch.tensor([1.0, share, 0.0]))]
            corrected += [apart(torch.tensor(with_term), torch.tensor([share, share, 0.0]))]
    g = group(rollouts()[1], 2)
    found = [
        coefficients(
            summed(slope(k2, g.log_ratio, g.reward - g.value + x), rollouts()[1], g) / 2, rollouts()[1]
        )
        for x in (torch.zeros_like(g.kl), g.kl)
    ]
    return Evidence(
        worst(printed),
        worst(corrected),
        correction=(
            "V - KL in the place of log Z lowers the KL's weight from 1 to 1 - 1/N, which is what the reward "
            "has already from the mean of its group: the ratio becomes 1 to 1, and the gradient (1 - 1/N) "
            "that of KL(pi||pi*). It is V alone that upweights the KL, by N/(N - 1)"
        ),
        counterexample=(
            "three random answers, N = 2, half the square: grad KL and -grad E[R] have the coefficients "
            f"{found[0][0]:.2f} and {found[0][1]:.2f} without the term, {found[1][0]:.2f} and "
            f"{found[1][1]:.2f} with it"
        ),
    )


@claim("EMA-J2-apa")
def gradient_of_the_square_with_v() -> Evidence:
    """Half of its expected gradient is -(R - V) s + grad KL; printed are the whole and a plus."""
    printed, corrected = [], []
    for problem in rollouts():
        reward = field(problem.rewards - expected_reward(problem), problem)
        kl = kl_gradient(problem)
        target = problem.rewards - expected_reward(problem)
        whole, half = (field(slope(f, log_ratio(problem), target), problem) for f in (square, k2))
        printed += [apart(whole, reward + kl), apart(half, reward + kl)]
        corrected += [apart(half, kl - reward), apart(half, to_target(problem)[1])]
    small_reward = reward_gradient(small())
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq80",
        correction=(
            f"-grad log pi (R - V) + grad KL(pi||ref), with {HALF}, in expectation and with V = E[R]; then "
            "it is the gradient of KL(pi||pi*)"
        ),
        counterexample=(
            f"{WORLD}: half the square has {first(regularized(small())):.4f}, printed is "
            f"{first(small_reward + kl_gradient(small())):.4f}"
        ),
    )


@claim("EMA-J2-apa+prior", how="reading")
def what_prior_work_takes_for_log_z() -> Evidence:
    """A statement about the losses of two other papers."""
    return Evidence(needs="the losses of the papers that it names, which are no part of this source")


@claim("EMA-eq148")
def k2_as_apa() -> Evidence:
    """Half the square with V = E[R] has the gradient of KL(pi||pi*); the printed square has twice that."""
    printed, corrected = [], []
    for problem in rollouts():
        target = problem.rewards - expected_reward(problem)
        whole, half = (field(slope(f, log_ratio(problem), target), problem) for f in (square, k2))
        wanted = to_target(problem)[1]
        printed.append(apart(whole, field(at_target(k2, problem), problem)))
        corrected += [apart(half, wanted), apart(field(at_target(k2, problem), problem), wanted)]
        for size in SIZES:
            g = group(problem, size)
            own = summed(slope(k2, g.log_ratio, g.reward - g.value), problem, g) / size
            corrected.append(apart(own, kl_gradient(problem) - (1 - 1 / size) * reward_gradient(problem)))
    target = small().rewards - expected_reward(small())
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq80",
        correction=(
            f"with {HALF}, in expectation, V = E[R] or the mean of the other rollouts. The mean of all N "
            "leaves grad KL - (1 - 1/N) grad E[R]"
        ),
        counterexample=twice(slope(square, log_ratio(small()), target), small()),
    )


def _elsewhere() -> list[Problem]:
    """Bandits whose samples are another policy's."""
    return [p for p in sampled_elsewhere() if p.rows.shape[1] == 1 and len(p.sequences) < 5]


def _squared_residual(problem: Problem) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """E_mu[(log w)^2]/2 with the sampler held fixed: an objective whose least value, 0, is at pi*."""
    p, z = terms(problem).p, log_z(problem)
    return lambda a, b: p @ (a - b - problem.rewards + z) ** 2 / 2


@claim("EMA-eq148+offpolicy")
def the_square_without_a_weight() -> Evidence:
    """pi* stays a stationary point under another sampler with log Z, or V - KL, but not with V alone."""
    printed, inside = [], []
    for problem in _elsewhere():
        found = field(at_target(k2, problem), problem)
        inside.append(apart(found, exact(_squared_residual(problem), problem)[1]))
    for problem in map(at_optimum, _elsewhere()):
        inside.append(apart(field(at_target(k2, problem), problem), 0.0))
        value = mean(terms(problem).p, problem.rewards)  # under the sampler: what a group estimates
        printed.append(apart(field(slope(k2, log_ratio(problem), problem.rewards - value), problem), 0.0))
        for size in SIZES:
            g = group(problem, size)
            bound = slope(k2, g.log_ratio, g.reward - g.value + g.kl)
            inside.append(apart(summed(bound, problem, g), 0.0))
            apa = slope(k2, g.log_ratio, g.reward - g.value)
            printed.append(apart(summed(apa, problem, g) / size, 0.0))
    world = at_optimum(small())._replace(behavior_logits=small().logits)
    value = mean(terms(world).p, world.rewards)
    moved = first(field(slope(k2, log_ratio(world), world.rewards - value), world))
    g = group(world, 2)
    kept = first(summed(slope(k2, g.log_ratio, g.reward - g.value + g.kl), world, g) / 2)
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition=(
            "log Z is exact, or V - KL of the group: then every residual is 0 at pi*, whoever samples. "
            "With V alone the residuals at pi* are V - log Z, and off-policy their scores do not cancel: "
            "the term that eq (148) drops would have kept the optimum in place"
        ),
        counterexample=(
            "two answers, even reference, R = (1, 0), policy pi*, samples from (0.9, 0.1), first logit: the "
            f"expected gradient at the optimum is {moved:.4f} with V, {abs(kept):.4f} with V - KL of a pair"
        ),
    )
