"""Appendix J.2: K2 as a policy gradient, which is APA (emapg2026).

Which coefficient a loss puts on the score comes from automatic differentiation of the formulas of table 1,
with the optimal policy in the place of the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, numbers, printed, same
from kl_book.ledger.claims.ground import rollouts as sampled
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.estimates import full_square, k2
from kl_book.ledger.claims.ground.targets import at_optimum
from kl_book.ledger.claims.ground.updates import coordinates
from kl_book.ledger.claims.ground.world import Enumeration, each

InGroups = tuple[Enumeration, sampled.Group]


@claim("EMA-J2-expand+start", over=each(sampled.rollouts))
def gradient_of_k2(w: Enumeration) -> Iterator[Found]:
    """grad of half the square is (l - R + log Z) s; the printed square is twice that."""
    half = w.at_target(k2)
    yield same(w.Es(w.at_target(full_square)), w.d_target, by=relative)
    yield same(half, -w.log_w, "corrected")
    yield same(w.Es(half), w.d_target, "corrected")


@claim("EMA-J2-expand", over=sampled.in_groups(sampled.rollouts))
def log_z_inside_the_square(x: InGroups) -> Iterator[Found]:
    """log Z is V - KL: the square holds -KL, and its cross term with the score is -2 KL s."""
    w, g = x
    apa, right = g.log_ratio - g.reward + g.value, 2 * (1 - 1 / g.size) * (w.d_kl - w.d_reward)
    yield same(g.sum(2 * (apa + g.kl)) / g.size, right, by=relative)
    yield same(g.sum(2 * apa + g.kl) / g.size, right, by=relative)
    yield same(g.sum(2 * (apa - g.kl)) / g.size, right, "corrected")
    yield same((g.sum(2 * apa) - 2 * w.d_kl) / g.size, right, "corrected")


def coefficients(w: Enumeration, g: sampled.Group, log_z: torch.Tensor) -> torch.Tensor:
    """Of grad KL and -grad E[R] in the mean gradient of half the square with this log Z, and what is left."""
    gradient = g.sum(sampled.logp_slope(k2, g.log_ratio, g.reward - log_z)) / g.size
    kl, reward = coordinates(gradient, w.d_kl, -w.d_reward)
    rest = (kl * w.d_kl - reward * w.d_reward - gradient).abs().max()
    return torch.stack([kl, reward, rest])


@claim("EMA-J2-expand+upweights")
def what_the_second_term_does() -> Iterator[Found]:
    """Without it the KL has the weight N/(N - 1) relative to the reward; with it both have 1 - 1/N."""
    lowered = []
    for w, g in sampled.in_groups(*sampled.rollouts()[1:])():
        share = 1 - 1 / g.size
        without, with_term = coefficients(w, g, g.value), coefficients(w, g, g.value - g.kl)
        lowered.append(float(with_term[0] <= without[0]))
        yield same(without, w.d_kl.new_tensor([1.0, share, 0.0]), "corrected")
        yield same(with_term, w.d_kl.new_tensor([share, share, 0.0]), "corrected")
    yield printed(sum(lowered) / len(lowered))


@claim("EMA-J2-apa", over=each(sampled.rollouts))
def gradient_of_the_square_with_v(w: Enumeration) -> Iterator[Found]:
    """Half of its expected gradient is -(R - V) s + grad KL; printed are the whole and a plus."""
    reward = w.Es(w.R - w.E(w.R))
    whole, half = (w.Es(sampled.with_mean_reward(f, w)) for f in (full_square, k2))
    yield same(reward + w.d_kl, whole, by=relative)
    yield same(reward + w.d_kl, half, by=relative)
    yield same(half, w.d_kl - reward, "corrected")
    yield same(half, w.d_target, "corrected")


@claim("EMA-eq148", over=sampled.in_groups(sampled.rollouts))
def k2_as_apa(x: InGroups) -> Iterator[Found]:
    """Half the square with V = E[R] has the gradient of KL(pi||pi*); the printed square has twice that."""
    w, g = x
    whole, half = (w.Es(sampled.with_mean_reward(f, w)) for f in (full_square, k2))
    of_k2 = w.Es(w.at_target(k2))
    own = g.sum(sampled.logp_slope(k2, g.log_ratio, g.reward - g.value)) / g.size
    yield same(whole, of_k2, by=relative)
    yield same(half, w.d_target, "corrected")
    yield same(of_k2, w.d_target, "corrected")
    yield same(own, w.d_kl - (1 - 1 / g.size) * w.d_reward, "corrected")


@words("EMA-J2-expand+start", "EMA-J2-expand", "EMA-J2-expand+upweights", "EMA-J2-apa", "EMA-eq148")
def two_answers_and_three() -> dict[str, Any]:
    """Entries of the first logit with two answers; the coefficients of a pair out of three."""
    w, pair = Enumeration(sampled.two_answers()), sampled.group(sampled.two_answers(), 2)
    three, pair_of_three = Enumeration(sampled.rollouts()[1]), sampled.group(sampled.rollouts()[1], 2)
    apa = pair.log_ratio - pair.reward + pair.value
    without = coefficients(three, pair_of_three, pair_of_three.value)
    with_term = coefficients(three, pair_of_three, pair_of_three.value - pair_of_three.kl)
    return {
        "square": sampled.first_logit(w.Es(w.at_target(full_square))),
        "target": sampled.first_logit(w.d_target),
        "split": sampled.first_logit(pair.sum(2 * (apa - pair.kl)) / 2),
        "printed_split": sampled.first_logit(pair.sum(2 * apa + pair.kl) / 2),
        "plus": sampled.first_logit(w.d_reward + w.d_kl),
        "kl_without": float(without[0]),
        "reward_without": float(without[1]),
        "kl_with": float(with_term[0]),
        "reward_with": float(with_term[1]),
        "group": sampled.GROUP_SIZE,
        "weight": sampled.GROUP_SIZE / (sampled.GROUP_SIZE - 1),
    }


@claim("EMA-eq148+offpolicy")
def the_square_without_a_weight() -> Iterator[Found]:
    """What others showed; computed is whether pi* stays at rest under another sampler."""
    w = Enumeration(at_optimum(sampled.two_answers())._replace(behavior_logits=sampled.two_answers().logits))
    pair = sampled.group(w.problem, 2)
    value = w.E(w.R)  # under the sampler: what a group estimates
    rest = pair.sum(sampled.logp_slope(k2, pair.log_ratio, pair.reward - pair.value + pair.kl)) / 2
    moved = w.Es(sampled.logp_slope(k2, w.l, w.R - value))
    yield numbers(rest=abs(sampled.first_logit(rest)), moved=sampled.first_logit(moved))
