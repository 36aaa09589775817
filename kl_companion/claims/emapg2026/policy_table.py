"""Table 8, the policy gradient of each estimator, and the note on off-policy correction (emapg2026)."""

from __future__ import annotations

import torch

from kl_companion.claims.emapg2026.policy_combined import k4_and_the_square, summed_not_averaged, two
from kl_companion.claims.emapg2026.policy_gradients import WORLD, expected_reward, regularized
from kl_companion.claims.emapg2026.policy_squares import HALF, square, twice
from kl_companion.claims.emapg2026.rollout_groups import (
    at_target,
    first,
    log_w,
    log_z,
    rollouts,
    slope,
    small,
    to_target,
)
from kl_companion.claims.emapg2026.table_one import SAMPLED, k1, k2, k3, k3_plus_plus
from kl_companion.claims.ledger import Evidence, claim
from kl_companion.claims.off_policy import average, rho, sampled_elsewhere, three_policies, times_score
from kl_companion.claims.worlds import apart, field, kl_gradient, log_ratio, mean, terms, worst
from kl_companion.tabular import Problem, truncate


def first_loss(problem: Problem) -> torch.Tensor:
    """Expected L1 of the table: -(R - V) s + grad KL."""
    return field(-(problem.rewards - expected_reward(problem)), problem) + kl_gradient(problem)


def second_loss(problem: Problem) -> torch.Tensor:
    """Coefficient of L2 of the table: the square without half, V for log Z."""
    return slope(square, log_ratio(problem), problem.rewards - expected_reward(problem))


@claim("EMA-tab8-K1")
def row_of_k1() -> Evidence:
    """-(R - V) s + grad KL is K1 in the reward; the derivative of K1 has mean 0."""
    printed, inside = [], []
    for problem in rollouts():
        printed.append(apart(field(at_target(k1, problem), problem), first_loss(problem)))
        inside += [apart(field(-log_w(problem), problem), first_loss(problem))]
        inside.append(apart(first_loss(problem), to_target(problem)[1]))
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition="K1 is a penalty in the reward, and V does not hold the own reward; as a loss K1 gives 0",
        counterexample=(
            f"{WORLD}: the loss K1 has the expected gradient "
            f"{abs(first(field(at_target(k1, small()), small()))):.4f}, the row "
            f"{first(first_loss(small())):.4f}"
        ),
    )


@claim("EMA-tab8-K2")
def row_of_k2() -> Evidence:
    """The expression has a half, the gradient beside it has none."""
    printed, corrected = [], []
    for problem in rollouts():
        wanted = to_target(problem)[1]
        of_k2 = field(at_target(k2, problem), problem)
        printed.append(apart(field(second_loss(problem), problem), of_k2))
        half = slope(k2, log_ratio(problem), problem.rewards - expected_reward(problem))
        corrected += [apart(field(half, problem), wanted), apart(of_k2, wanted)]
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-eq80",
        correction=f"with {HALF}; in expectation, and V must not hold the own reward",
        counterexample=twice(second_loss(small()), small()),
    )


@claim("EMA-tab8-K4")
def row_of_k4() -> Evidence:
    """K4 has K2's gradient, half of what the row of K2 prints."""
    found = [k4_and_the_square(second_loss(p), p) for p in rollouts()]
    inside = [e for _, errors in found for e in errors]
    return Evidence(
        worst([*inside, *(e for errors, _ in found for e in errors)]),
        inside=worst(inside),
        condition=f"L2 is the derivative of K2, {HALF} included; sample by sample with log Z for V",
        counterexample=twice(second_loss(small()), small()),
    )


@claim("EMA-tab8-K5")
def row_of_k5() -> Evidence:
    """As eq (149)."""
    return summed_not_averaged()


@claim("EMA-tab8-K3")
def row_of_k3() -> Evidence:
    """grad K3 is that of KL(pi*||pi), as K5; the L1 of the table would add all of KL(pi||pi*)."""
    printed, corrected = [], []
    for problem in rollouts():
        found = field(at_target(k3, problem), problem)
        forward = to_target(problem, forward=True)[1]
        row = first_loss(problem) + field(-log_w(problem).exp(), problem)
        printed.append(apart(found, row))
        corrected += [apart(found, forward), apart(row, forward + to_target(problem)[1])]
    row = first_loss(small()) + field(-log_w(small()).exp(), small())
    return Evidence(
        worst(printed),
        worst(corrected),
        correction=(
            "grad L3 = grad L5, with the score of log r kept sample by sample: RWR, MPO. For GRPO and MPO "
            "together put K1 into the reward and add K5 as a loss"
        ),
        counterexample=(
            f"{WORLD}: K3 has the expected gradient {first(to_target(small(), forward=True)[1]):.4f}, the "
            f"row {first(row):.4f}"
        ),
    )


@claim("EMA-tab8-K3pp")
def row_of_k3_plus_plus() -> Evidence:
    """K3++ is K2's gradient, sample by sample; the row's sum is three times as long in expectation."""
    printed, corrected = [], []
    for problem in rollouts():
        found, wanted = at_target(k3_plus_plus, problem), to_target(problem)[1]
        row = first_loss(problem) + field(second_loss(problem), problem)
        printed.append(apart(field(found, problem), row))
        corrected += [apart(found, at_target(k2, problem)), apart(field(found, problem), wanted)]
        corrected.append(apart(row, 3 * wanted))
    row = first_loss(small()) + field(second_loss(small()), small())
    return Evidence(
        worst(printed),
        worst(corrected),
        correction=(
            f"grad L3++ = grad L2, with {HALF}: APA. The printed sum points the same way in expectation, but "
            "is three times as long (twice with the half), and K3++ has no term of L1 in any sample"
        ),
        counterexample=(
            f"{WORLD}: K3++ has the expected gradient {first(to_target(small())[1]):.4f}, the row "
            f"{first(row):.4f}"
        ),
    )


def elsewhere() -> list[Problem]:
    """Bandits of up to six answers, and trees, that another policy samples."""
    return [p for p in sampled_elsewhere() if len(p.sequences) < 10]


def at_home(problem: Problem) -> Problem:
    """The same world on-policy."""
    return problem._replace(behavior_logits=None)


@claim("EMA-J4-offpolicy")
def weights_on_losses() -> Evidence:
    """E_mu[sg(pi/mu) grad L] = E_pi[grad L] for all six losses, if mu covers pi and Z is not from (143)."""
    printed, inside = [], []
    for problem in elsewhere():
        for name, estimate in SAMPLED.items():
            c, home = at_target(estimate, problem), at_home(problem)
            found = average(times_score(c, problem), problem)
            wanted = field(at_target(estimate, home), home)
            inside.append(apart(found, wanted))
            if name != "K1":
                inside.append(apart(found, to_target(problem, forward=name in ("K3", "K5"))[1]))
        t, z = terms(problem), log_z(problem).exp()
        by_behavior = (t.ref_logp.sum(-1) + problem.rewards).exp() / t.p
        inside.append(apart(mean(t.p, by_behavior), z))
        printed.append(apart(mean(t.p, (problem.rewards - log_ratio(problem)).exp()), z))
    for problem in rollouts()[1:4]:
        cut = truncate(problem, top_k=2)
        weight = torch.where(terms(cut).p > 0, rho(cut), 0.0)[:, None, None] * terms(cut).score
        found = mean(terms(cut).p, -log_w(problem)[:, None, None] * weight)
        printed.append(apart(found, to_target(problem)[1]))
    world = _off_policy_pair()
    under_mu = float(mean(terms(world).p, (world.rewards - log_ratio(world)).exp()))
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition=(
            "mu may sample whatever pi may, and log Z is exact, or its estimate divides by mu: eq (143) as "
            "it stands is for samples of pi"
        ),
        counterexample=(
            "two answers, policy (0.9, 0.1), samples from (0.5, 0.5), even reference, R = (1, 0): eq (143) "
            f"has the mean {under_mu:.3f} under these samples, Z is {float(log_z(world).exp()):.3f}"
        ),
    )


def _off_policy_pair() -> Problem:
    return three_policies((0.9, 0.1), (0.5, 0.5), (0.5, 0.5))._replace(rewards=small().rewards)


def mask(problem: Problem, low: float, high: float) -> torch.Tensor:
    """M of every sequence, by the sign of R - V and the ratio pi/mu, with V = E_pi[R]."""
    value = expected_reward(at_home(problem))
    s, advantage = rho(problem), problem.rewards - value
    blocked = ((advantage > 0) & (s > 1 + high)) | ((advantage < 0) & (s < 1 - low))
    return (~blocked).to(s)


@claim("EMA-J4-offpolicy+mask")
def masks_on_losses() -> Evidence:
    """E_mu[s M grad L] is the gradient where nothing is masked; a mask leaves rollouts out, and biases."""
    printed: list[float] = []
    inside: list[float] = []
    for problem in elsewhere():
        for name, estimate in SAMPLED.items():
            c = at_target(estimate, problem)
            wanted = field(at_target(estimate, at_home(problem)), at_home(problem))
            for errors, low, high in ((inside, 1.0, float(rho(problem).max())), (printed, 0.2, 0.28)):
                kept = mask(problem, low, high)
                errors.append(apart(average(times_score(c * kept, problem), problem), wanted))
            if name in ("K2", "K3++", "K4"):
                inside.append(apart(wanted, regularized(problem)))
    world = _off_policy_pair()
    kept = mask(world, 0.2, 0.28)
    found, full = (
        first(average(times_score(-log_w(world) * k, world), world)) for k in (kept, torch.ones(2).double())
    )
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition="M = 1 for every rollout that mu may sample: a mask bounds the step at the price of a bias",
        counterexample=(
            "two answers, policy (0.9, 0.1), samples from (0.5, 0.5), even reference, R = (1, 0), loss K2, "
            f"bounds 0.2 and 0.28, first logit: {found:.4f} masked, {full:.4f} without. The sign of R - V "
            f"masks {int(2 - kept.sum())} of 2 answers, though log w = {two(log_w(world))} and pi/mu = "
            f"{two(rho(world))}: the step would have drawn both ratios back to 1"
        ),
    )
