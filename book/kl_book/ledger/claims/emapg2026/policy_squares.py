"""Appendix J.2: K2 as a policy gradient, which is APA (emapg2026).

Which coefficient a loss puts on the score comes from automatic differentiation of the formulas of table 1,
with the optimal policy in the place of the reference.
"""

from __future__ import annotations

import torch

from kl_book.ledger.claims.ground.errors import apart, relative, worst
from kl_book.ledger.claims.ground.estimates import full_square, k2
from kl_book.ledger.claims.ground.rollout_texts import FACTOR_TWO, HALF_OF_K2, WORLD, missing_half
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
from kl_book.ledger.claims.ledger import Evidence, claim
from kl_companion.tabular import Problem


@claim("EMA-J2-expand+start")
def gradient_of_k2() -> Evidence:
    """grad of half the square is (l - R + log Z) s; the printed square is twice that."""
    printed, corrected = [], []
    for problem in rollouts():
        wanted, half = kl_to_target(problem)[1], slope_at_target(k2, problem)
        printed.append(relative(field(slope_at_target(full_square, problem), problem), wanted))
        corrected += [apart(half, -log_w(problem)), apart(field(half, problem), wanted)]
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq80",
        unit="relative difference",
        correction=f"{HALF_OF_K2}, which stands on the left side, belongs on the right side as well",
        counterexample=missing_half(slope_at_target(full_square, two_answers()), two_answers()),
        practice=FACTOR_TWO,
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
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq143-144",
        unit="relative difference",
        correction=(
            r"$\nabla(\ell - (R - V) - \hat{KL})^2 = \nabla(\ell - (R - V))^2 - 2\hat{KL}\,\nabla\log \pi$: "
            r"$V - \hat{KL}$ stands for $\log Z$, and a square has a factor 2"
        ),
        counterexample=(
            rf"{WORLD}, $N = 2$, the square with $V - \hat{{KL}}$ for $\log Z$: expected gradient "
            f"{right:.4f}; the printed split has {wrong:.4f}"
        ),
        practice=(
            "the box (148) leaves the term out, and no result depends on its sign. Added as printed it "
            "raises the weight of the KL; the right term lowers it"
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
    return Evidence(
        sum(printed) / len(printed),
        worst(corrected),
        unit="share of cases",
        correction=(
            "the term lowers the weight of the KL from 1 to $1 - 1/N$, which is the weight of the reward as "
            r"well: with it the gradient is $1 - 1/N$ times that of $\KL{\pi}{\pi^*}$. It is $V$ alone that "
            "gives the KL more weight, $N/(N - 1)$ of the reward's"
        ),
        counterexample=(
            r"three answers (seed 1), $N = 2$, half the square: $\nabla\,\mathrm{KL}$ and $-\nabla\E[R]$ "
            f"have the coefficients {found[0][0]:.2f} and {found[0][1]:.2f} without the term, "
            f"{found[1][0]:.2f} and {found[1][1]:.2f} with it"
        ),
        practice=(
            f"with groups of {GROUP_SIZE} the square with $V$ alone, as in the box (148), has the KL at "
            rf"{GROUP_SIZE / (GROUP_SIZE - 1):.2f} of the $\beta$ that was asked for, with the term at 1"
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
        whole, half = (field(logp_slope(f, log_ratio(problem), target), problem) for f in (full_square, k2))
        printed += [relative(reward + kl, x) for x in (whole, half)]
        corrected += [apart(half, kl - reward), apart(half, kl_to_target(problem)[1])]
    small_reward = reward_gradient(two_answers())
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq80",
        unit="relative difference",
        correction=(
            rf"$-(R - V)\nabla\log \pi + \nabla\,\KL{{\pi}}{{\pref}}$ in expectation, with {HALF_OF_K2} and "
            r"$V = \E[R]$: the gradient of $\KL{\pi}{\pi^*}$"
        ),
        counterexample=(
            f"{WORLD}: half the square has {first_logit(regularized_gradient(two_answers())):.4f}, printed "
            "is "
            f"{first_logit(small_reward + kl_gradient(two_answers())):.4f}"
        ),
        practice=(
            "none where the square itself is the loss and is differentiated. An implementation of the "
            "printed gradient minimizes the reward"
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
        whole, half = (field(logp_slope(f, log_ratio(problem), target), problem) for f in (full_square, k2))
        wanted = kl_to_target(problem)[1]
        printed.append(relative(whole, field(slope_at_target(k2, problem), problem)))
        corrected += [apart(half, wanted), apart(field(slope_at_target(k2, problem), problem), wanted)]
        for size in SIZES:
            g = group(problem, size)
            own = expected_sum(logp_slope(k2, g.log_ratio, g.reward - g.value), problem, g) / size
            corrected.append(apart(own, kl_gradient(problem) - (1 - 1 / size) * reward_gradient(problem)))
    target = two_answers().rewards - expected_reward(two_answers())
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq80",
        unit="relative difference",
        correction=(
            rf"with {HALF_OF_K2}, in expectation; $V$ is $\E[R]$ or the mean of the other rollouts. With "
            "the mean "
            r"of all $N$ it is $\nabla\,\KL{\pi}{\pref} - (1 - 1/N)\nabla\E[R]$"
        ),
        counterexample=missing_half(logp_slope(full_square, log_ratio(two_answers()), target), two_answers()),
        practice=FACTOR_TWO,
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


@claim("EMA-eq148+offpolicy", how="reading")
def the_square_without_a_weight() -> Evidence:
    """What others showed; computed is whether pi* stays at rest under another sampler."""
    moved, kept = off_policy_optimum()
    return Evidence(
        needs="the experiments of the papers that it names, which are no part of this source",
        note=(
            r"samples from (0.9, 0.1), even reference, $R$ = (1, 0), at $\pi = \pi^*$, first logit: the "
            rf"expected gradient is {abs(kept):.4f} with $\log Z$ or $V - \hat{{KL}}$, and {moved:.4f} with "
            "$V$ alone: without a weight the optimum moves"
        ),
    )
