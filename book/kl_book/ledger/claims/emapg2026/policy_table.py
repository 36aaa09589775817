"""Table 8, the policy gradient of each estimator, and the note on off-policy correction (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, relative, worst
from kl_book.ledger.claims.ground.estimates import SAMPLED, full_square, k2, k3, k3_plus_plus
from kl_book.ledger.claims.ground.off_policy import average, rho, times_score
from kl_book.ledger.claims.ground.rollout_texts import (
    another_optimum,
    counted_twice,
    in_brackets,
    missing_half,
)
from kl_book.ledger.claims.ground.rollouts import (
    eq147,
    expected_reward,
    first_logit,
    kl_to_target,
    log_w,
    log_z,
    logp_slope,
    regularized_gradient,
    rollouts,
    slope_at_target,
    two_answers,
)
from kl_book.ledger.claims.ground.sums import field, log_ratio, mean, terms
from kl_book.ledger.claims.ground.worlds import few_sampled_elsewhere, three_policies
from kl_companion.tabular import Problem

OFF_POLICY = r"two answers, $\pi$ = (0.9, 0.1), $\mu = \pref$ = (0.5, 0.5), $R$ = (1, 0)"


def second_loss(problem: Problem) -> torch.Tensor:
    """Coefficient of L2 of the table: the square without half, V for log Z."""
    return logp_slope(full_square, log_ratio(problem), problem.rewards - expected_reward(problem))


@claim("EMA-tab8-K2")
def row_of_k2() -> Iterator[Found]:
    """The expression has a half, the gradient beside it has none."""
    printed, corrected = [], []
    for problem in rollouts():
        wanted = kl_to_target(problem)[1]
        of_k2 = field(slope_at_target(k2, problem), problem)
        printed.append(relative(field(second_loss(problem), problem), of_k2))
        half = logp_slope(k2, log_ratio(problem), problem.rewards - expected_reward(problem))
        corrected += [apart(field(half, problem), wanted), apart(of_k2, wanted)]
    yield from each_form(
        worst(printed),
        worst(corrected),
        counterexample=missing_half(second_loss(two_answers()), two_answers()),
    )


@claim("EMA-tab8-K3")
def row_of_k3() -> Iterator[Found]:
    """grad K3 is that of KL(pi*||pi), as K5; the L1 of the table would add all of KL(pi||pi*)."""
    printed, corrected = [], []
    for problem in rollouts():
        found = field(slope_at_target(k3, problem), problem)
        forward = kl_to_target(problem, forward=True)[1]
        row = eq147(problem) + field(-log_w(problem).exp(), problem)
        printed.append(relative(row, found))
        corrected += [apart(found, forward), apart(row, forward + kl_to_target(problem)[1])]
    row = eq147(two_answers()) + field(-log_w(two_answers()).exp(), two_answers())
    yield from each_form(
        worst(printed),
        worst(corrected),
        first_logit=first_logit(kl_to_target(two_answers(), forward=True)[1]),
        first_logit_row=first_logit(row),
        practice=another_optimum(),
    )


@claim("EMA-tab8-K3pp")
def row_of_k3_plus_plus() -> Iterator[Found]:
    """K3++ is K2's gradient, sample by sample; the row's sum is three times as long in expectation."""
    printed, corrected = [], []
    for problem in rollouts():
        found, wanted = slope_at_target(k3_plus_plus, problem), kl_to_target(problem)[1]
        row = eq147(problem) + field(second_loss(problem), problem)
        printed.append(relative(row, field(found, problem)))
        corrected += [apart(found, slope_at_target(k2, problem)), apart(field(found, problem), wanted)]
        corrected.append(apart(row, 3 * wanted))
    row = eq147(two_answers()) + field(second_loss(two_answers()), two_answers())
    yield from each_form(
        worst(printed),
        worst(corrected),
        first_logit=first_logit(kl_to_target(two_answers())[1]),
        first_logit_row=first_logit(row),
        practice=counted_twice(),
    )


def at_home(problem: Problem) -> Problem:
    """The same world on-policy."""
    return problem._replace(behavior_logits=None)


@claim("EMA-J4-offpolicy")
def weights_on_losses() -> Iterator[Found]:
    """E_mu[sg(pi/mu) grad L] = E_pi[grad L] for all six losses, if mu covers pi and Z is not from (143)."""
    printed, inside = [], []
    for problem in few_sampled_elsewhere():
        for name, estimate in SAMPLED.items():
            c, home = slope_at_target(estimate, problem), at_home(problem)
            found = average(times_score(c, problem), problem)
            wanted = field(slope_at_target(estimate, home), home)
            inside.append(apart(found, wanted))
            if name != "K1":
                inside.append(apart(found, kl_to_target(problem, forward=name in ("K3", "K5"))[1]))
        t, z = terms(problem), log_z(problem).exp()
        by_behavior = (t.ref_logp.sum(-1) + problem.rewards).exp() / t.p
        inside.append(apart(mean(t.p, by_behavior), z))
        printed.append(abs(float(mean(t.p, (problem.rewards - log_ratio(problem)).exp()) / z - 1)))
    world = _off_policy_pair()
    under_mu = float(mean(terms(world).p, (world.rewards - log_ratio(world)).exp()))
    yield from each_form(
        worst([*printed, *inside]), inside=worst(inside), under_mu=under_mu, float=float(log_z(world).exp())
    )


def _off_policy_pair() -> Problem:
    return three_policies((0.9, 0.1), (0.5, 0.5), (0.5, 0.5))._replace(rewards=two_answers().rewards)


def mask(problem: Problem, low: float, high: float) -> torch.Tensor:
    """M of every sequence, by the sign of R - V and the ratio pi/mu, with V = E_pi[R]."""
    value = expected_reward(at_home(problem))
    s, advantage = rho(problem), problem.rewards - value
    blocked = ((advantage > 0) & (s > 1 + high)) | ((advantage < 0) & (s < 1 - low))
    return (~blocked).to(s)


@claim("EMA-J4-offpolicy+mask")
def masks_on_losses() -> Iterator[Found]:
    """E_mu[s M grad L] is the gradient where nothing is masked; a mask leaves rollouts out, and biases."""
    printed: list[float] = []
    inside: list[float] = []
    for problem in few_sampled_elsewhere():
        for name, estimate in SAMPLED.items():
            c = slope_at_target(estimate, problem)
            wanted = field(slope_at_target(estimate, at_home(problem)), at_home(problem))
            bounds = ((1.0, float(rho(problem).max())), (0.2, 0.28))  # none is masked, some are
            free, masked = (
                average(times_score(c * mask(problem, low, high), problem), problem) for low, high in bounds
            )
            inside.append(apart(free, wanted))
            if name != "K1":  # of K1 the expected gradient is 0, and nothing is relative to it
                printed.append(relative(masked, wanted))
            if name in ("K2", "K3++", "K4"):
                inside.append(apart(wanted, regularized_gradient(problem)))
    world = _off_policy_pair()
    kept = mask(world, 0.2, 0.28)
    found, full = (
        first_logit(average(times_score(-log_w(world) * k, world), world))
        for k in (kept, torch.ones(2).double())
    )
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        found=found,
        full=full,
        int=int(2 - kept.sum()),
        in_brackets=in_brackets(log_w(world)),
        in_brackets_2=in_brackets(rho(world)),
    )
