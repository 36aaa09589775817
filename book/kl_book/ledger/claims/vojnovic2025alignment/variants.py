"""Section 3: the KL divergence as the penalty, and rewards without a scale (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import (
    Found,
    at_most,
    corrected,
    differs,
    inside,
    numbers,
    printed,
    same,
)
from kl_book.ledger.claims.ground import questions as ab
from kl_book.ledger.claims.ground.best_policies import not_best, with_kl
from kl_book.ledger.claims.ground.errors import apart
from kl_book.ledger.claims.ground.group_objective import policy_mean
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sums import mean
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import bandits, few_sampled_elsewhere, sampled_elsewhere

GRADES: tuple[ab.Reward, ...] = (0.0, 0.4, 1.0)
RANDOM = (ab.CHECKED, ab.GRADED)


@claim("VY-3-D", over=each(sampled_elsewhere))
def a_weighted_penalty_has_the_divergence_as_its_mean(w: Enumeration) -> Iterator[Found]:
    """Policy over sampler, times k3: the mean over samples of the sampler is the KL of the policy."""
    yield same(w.E(w.rho * w.value("k3")), w.kl)


def _weighted_questions() -> list[ab.Question]:
    cases = (GRADES, 2), (GRADES, 4), (ab.NOISY, 3), (ab.NOISY, None)
    return [ab.question(ab.THREE, 0.7, rewards, size, "weighted") for rewards, size in cases]


@claim("VY-3-policy", over=_weighted_questions)
def the_pool_with_the_divergence(q: ab.Question) -> Iterator[Found]:
    """Stationary policies are pi_ref e^(P_G/beta) / Z, and none is better in groups of their own."""
    policy = ab.stationary(q)
    pool = q.ref * (q.preference(policy) / q.beta).exp()
    yield same(pool / pool.sum(), policy)
    yield printed(q.not_stationary(policy))
    yield printed(q.could_gain(policy))


@claim("VY-3-nlhf", over=lambda: product((GRADES, ab.NOISY), (0.7, 2.0)))
def groups_of_two_and_nash_learning(rewards: tuple[ab.Reward, ...], beta: float) -> Iterator[Found]:
    """With the KL divergence the stationary policy is the equilibrium of NLHF at half the coefficient."""
    q = ab.question(ab.THREE, beta, rewards, 2, "weighted")
    policy = ab.stationary(q)
    wins = ((1 + q.margins) / 2) @ policy  # ties count for half
    game = two(q.ref.tolist(), q.ref.tolist()).replace(rewards=wins)
    yield printed(not_best(policy, with_kl("reverse", game.problem, beta / 2)))
    yield printed(q.not_stationary(policy))


def _pooled(q: ab.Question, policy: torch.Tensor, gap: float) -> float:
    """Error of "the log-odds of the policy are those of the reference and gap/beta"."""
    a, b = policy.log() - q.ref.log()
    return apart(a - b, gap / q.beta)


@claim(
    "VY-3-binary",
    over=lambda: ab.pairs(*ab.KINDS, refs=ab.REFERENCES[1:], betas=(0.1, 0.5), penalty="weighted"),
)
def the_pool_over_two_answers(q: ab.Question) -> Iterator[Found]:
    """pi(a) is e^(gamma/2beta) pi_ref(a)/Z, for deterministic and random rewards."""
    up, (a, b) = math.exp(q.gamma / (2 * q.beta)), q.ref.tolist()
    yield same(ab.answer_a(q), up * a / (up * a + b / up))


@claim("VY-fig3")
def no_jump_with_the_divergence() -> Iterator[Found]:
    """pi(a) is at most e^(gamma/beta) pi_ref(a), so that it goes to 0 with the reference."""
    refs = (ab.NEARLY_ZERO, 1e-6, 0.3)
    for q in ab.pairs(ab.CERTAIN, ab.GRADED, refs=refs, betas=(0.1, 0.5), penalty="weighted"):
        yield at_most(ab.answer_a(q), math.exp(q.gamma / q.beta) * q.reference[0] + 1e-15)
        yield printed(_pooled(q, ab.stationary_pair(q), q.gamma))
    yield numbers(once_in_a_thousand=ab.answer_a(ab.weighted(1e-3, 0.04)))


@claim("VY-3-Ginf-small")
def small_coefficients_with_the_divergence() -> Iterator[Found]:
    """With certain rewards a leads everywhere; with random ones there is an optimum below 1 at every beta."""
    for ref, beta in ((0.3, 1.0), (0.3, 0.3), (0.8, 1.0)):
        certain = ab.weighted(ref, beta, ab.CERTAIN, None)
        yield inside(any(ab.lead(certain, float(x)) <= 0 for x in range(-15, 16)))
        for rewards in RANDOM:
            q = ab.weighted(ref, beta, rewards, None)
            policy = ab.stationary_pair(q)
            yield printed(1 - float(policy[0]))
            yield corrected(_pooled(q, policy, 1 / q.noise(policy)))
    one, small = (ab.stationary_pair(ab.weighted(0.3, beta, ab.CHECKED, None)) for beta in (1.0, 0.3))
    yield numbers(at_1=one[1], at_03=small[1])


@claim("VY-3-Ginf-two")
def large_coefficients_with_the_divergence() -> Iterator[Found]:
    """With certain rewards two policies are best in their own groups; with random rewards one is."""
    without = []
    for ref, beta in ((0.3, 5.0), (0.8, 8.0)):
        q = ab.weighted(ref, beta, ab.CERTAIN, None)
        policies = ab.all_stationary_pairs(q)
        yield same(float(len(policies)), 2.0, "inside")
        yield from (inside(q.could_gain(policy)) for policy in policies)
        for rewards in RANDOM:
            q = ab.weighted(ref, beta, rewards, None)
            policies = ab.all_stationary_pairs(q)
            without.append(len(policies) != 2)
            yield from (corrected(_pooled(q, policy, 1 / q.noise(policy))) for policy in policies)
            yield same(float(len(policies)), 1.0, "corrected")
    yield printed(share_of_cases(without))
    (one,) = ab.all_stationary_pairs(ab.weighted(0.3, 5.0, ab.CHECKED, None))
    low, high = ab.all_stationary_pairs(ab.weighted(0.3, 5.0, ab.CERTAIN, None))
    yield numbers(random=one[0], low=low[0], high=high[0])


def _shifted_preference(w: Enumeration, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of every group its probability under its sampler, its first answer and r - mean of that, [groups]."""
    p, index = groups(w.problem, size)
    return p, index[:, 0], centered(w.R[index], "mean")[:, 0]


@claim("VY-3-shift", over=each(few_sampled_elsewhere))
def advantages_without_a_scale(w: Enumeration) -> Iterator[Found]:
    """Their mean over answers of the policy is (1 - 1/G) times what the policy gains in expected reward."""
    gain = policy_mean(w, w.R)[0] - float(w.E(w.R))
    for size in (2, 3):
        p, first, advantage = _shifted_preference(w, size)
        yield same(mean(p, w.rho[first] * advantage), (1 - 1 / size) * gain)


@claim("VY-3-rlhf", over=lambda: product(each(*bandits()[:6])(), (2, 3), (0.5, 2.0)))
def both_changes_give_the_policy_of_rlhf(w: Enumeration, size: int, beta: float) -> Iterator[Found]:
    """The stationary policy is pi_ref e^(r (1 - 1/G)/beta) / Z: RLHF at the coefficient beta G/(G - 1)."""
    log_ref = w.ref.log()
    best = (log_ref + w.R / (beta * size / (size - 1))).softmax(-1)
    own = two(best.tolist(), w.ref.tolist()).replace(rewards=w.R)
    p, first, advantage = _shifted_preference(own, size)
    drawn, gains = (torch.zeros_like(best).index_add(0, first, x) for x in (p, p * advantage))
    preferred = w.replace(rewards=gains / drawn)
    yield printed(not_best(best, with_kl("reverse", preferred.problem, beta)))
    yield differs(best, (log_ref + w.R / beta).softmax(-1))
