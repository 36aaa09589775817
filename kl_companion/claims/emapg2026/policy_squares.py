"""Appendix J.2: K2 as a policy gradient, which is APA (emapg2026).

Which coefficient a loss puts on the score comes from automatic differentiation of the formulas of table 1,
with the optimal policy in the place of the reference.
"""

from __future__ import annotations

import torch

from kl_companion.claims.emapg2026.policy_gradients import WORLD, expected_reward, regularized
from kl_companion.claims.emapg2026.policy_k1 import GROUP
from kl_companion.claims.emapg2026.rollout_groups import (
    SIZES,
    at_target,
    first,
    group,
    log_w,
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
from kl_companion.claims.worlds import (
    apart,
    field,
    kl_gradient,
    log_ratio,
    mean,
    relative,
    terms,
    worst,
)
from kl_companion.tabular import Problem

HALF = r"the $\frac{1}{2}$ of K2"
TWICE = (
    "a factor 2 on the whole loss is one on the step size. It counts where another term stands beside it: a "
    r"KL in the loss with a $\beta$ of its own has half the weight then"
)


def square(logp: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """(log w)^2, without the half of K2."""
    return (logp - target) ** 2


def twice(printed: torch.Tensor, problem: Problem) -> str:
    """The counterexample of a missing half."""
    return (
        f"{WORLD}: the printed square has the expected gradient {first(field(printed, problem)):.4f}, "
        rf"$\KL{{\pi}}{{\pi^*}}$ {first(to_target(problem)[1]):.4f}"
    )


@claim("EMA-J2-expand+start")
def gradient_of_k2() -> Evidence:
    """grad of half the square is (l - R + log Z) s; the printed square is twice that."""
    printed, corrected = [], []
    for problem in rollouts():
        wanted, half = to_target(problem)[1], at_target(k2, problem)
        printed.append(relative(field(at_target(square, problem), problem), wanted))
        corrected += [apart(half, -log_w(problem)), apart(field(half, problem), wanted)]
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq80",
        unit="relative difference",
        correction=f"{HALF}, which stands on the left side, belongs on the right side as well",
        counterexample=twice(at_target(square, small()), small()),
        practice=TWICE,
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
            printed += [relative(mean_of(x), wanted) for x in (2 * (apa + g.kl), 2 * apa + g.kl)]
            corrected += [apart(mean_of(2 * (apa - g.kl)), wanted)]
            corrected.append(apart(mean_of(2 * apa) - 2 * kl / size, wanted))
    g = group(small(), 2)
    apa = g.log_ratio - g.reward + g.value
    right, wrong = (first(summed(c, small(), g) / 2) for c in (2 * (apa - g.kl), 2 * apa + g.kl))
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
            apa = slope(k2, g.log_ratio, g.reward - g.value)
            without = coefficients(summed(apa, problem, g) / size, problem)
            whole = slope(k2, g.log_ratio, g.reward - g.value + g.kl)
            with_term = coefficients(summed(whole, problem, g) / size, problem)
            printed.append(float(with_term[0] <= without[0]))
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
            f"with groups of {GROUP} the square with $V$ alone, as in the box (148), has the KL at "
            rf"{GROUP / (GROUP - 1):.2f} of the $\beta$ that was asked for, with the term at 1"
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
        printed += [relative(reward + kl, x) for x in (whole, half)]
        corrected += [apart(half, kl - reward), apart(half, to_target(problem)[1])]
    small_reward = reward_gradient(small())
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq80",
        unit="relative difference",
        correction=(
            rf"$-(R - V)\nabla\log \pi + \nabla\,\KL{{\pi}}{{\pref}}$ in expectation, with {HALF} and "
            r"$V = \E[R]$: the gradient of $\KL{\pi}{\pi^*}$"
        ),
        counterexample=(
            f"{WORLD}: half the square has {first(regularized(small())):.4f}, printed is "
            f"{first(small_reward + kl_gradient(small())):.4f}"
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
        whole, half = (field(slope(f, log_ratio(problem), target), problem) for f in (square, k2))
        wanted = to_target(problem)[1]
        printed.append(relative(whole, field(at_target(k2, problem), problem)))
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
        unit="relative difference",
        correction=(
            rf"with {HALF}, in expectation; $V$ is $\E[R]$ or the mean of the other rollouts. With the mean "
            r"of all $N$ it is $\nabla\,\KL{\pi}{\pref} - (1 - 1/N)\nabla\E[R]$"
        ),
        counterexample=twice(slope(square, log_ratio(small()), target), small()),
        practice=TWICE,
    )


def off_policy_optimum() -> tuple[float, float]:
    """What K2 leaves at the optimum under another sampler: with V for log Z, with V - KL of a pair."""
    world = at_optimum(small())._replace(behavior_logits=small().logits)
    value = mean(terms(world).p, world.rewards)  # under the sampler: what a group estimates
    g = group(world, 2)
    kept = summed(slope(k2, g.log_ratio, g.reward - g.value + g.kl), world, g) / 2
    return first(field(slope(k2, log_ratio(world), world.rewards - value), world)), first(kept)


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
