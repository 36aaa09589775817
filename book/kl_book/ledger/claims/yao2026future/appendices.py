"""Appendices B, C, E and F: single estimates, standardized rewards, other placements (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground import updates as u
from kl_book.ledger.claims.ground.errors import hedged, turned
from kl_book.ledger.claims.ground.estimates import Estimate, k1, k2, k3
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.positions import moments, positions
from kl_book.ledger.claims.ground.sequences import sum_from_here
from kl_book.ledger.claims.ground.sums import mean
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_companion.tabular import Problem, bandit

BETA = 0.1


@claim("FRPO-B1-k1grad", over=each(positions))
def the_differentiated_k1_has_mean_zero(w: Enumeration) -> Iterator[Found]:
    """The score of the sampled token has mean zero."""
    value, gradient = moments(k1, w.problem)
    yield same(gradient, 0.0)
    yield same(value, w.kl)


@claim("FRPO-B1-k2value", over=each(positions))
def the_mean_of_k2(w: Enumeration) -> Iterator[Found]:
    """Half the variance of the log-ratio and half the square of the KL, which is not the KL."""
    value, _ = moments(k2, w.problem)
    yield same(value, (w.var(w.l) + w.kl**2) / 2)
    yield differs(value, w.kl, by=1e-8)


@claim("FRPO-B1-k3grad", over=each(positions))
def the_differentiated_k3_has_minus_the_mean_score_of_the_reference(w: Enumeration) -> Iterator[Found]:
    """-E_ref[score], the gradient of the forward KL, and not that of the reverse KL."""
    _, gradient = moments(k3, w.problem)
    yield same(gradient, -mean(w.ref, w.s))
    yield same(gradient, w.d_forward)
    yield differs(gradient, w.d_kl)


def _drawn_elsewhere() -> Iterator[Problem]:
    """The fixed list of bandits, each sampled by a policy near its own."""
    for vocab, scale, seed in product((3, 10, 100), (0.3, 1.0, 2.5), range(10)):
        p = bandit(vocab, seed=seed, scale=scale, off_policy=True)
        yield p._replace(behavior_logits=p.logits + (p.sampled_from - p.logits) / 4)


def _off(estimate: Estimate, problem: Problem) -> float:
    """How far the mean of the differentiated estimate is from the gradient of the KL."""
    return float((moments(estimate, problem)[1] - Enumeration(problem).d_kl).norm())


@claim("FRPO-B1-k2off")
def the_bias_of_k2_with_older_samples() -> Iterator[Found]:
    """Biased, and as a rule less than k1 and k3."""
    smaller = []
    for problem in _drawn_elsewhere():
        square, *others = (_off(estimate, problem) for estimate in (k2, k1, k3))
        yield at_most(1e-8, square)
        smaller.append(square < min(others))
        own = problem._replace(behavior_logits=None)
        yield same(moments(k2, own)[1], Enumeration(own).d_kl)
    yield printed(hedged(smaller))
    yield numbers(smaller=sum(smaller), bandits=len(smaller))


@claim("FRPO-C.2", over=each(u.graded_pairs, u.graded))
def standardized_rewards_have_mean_zero_and_variance_one(w: Enumeration) -> Iterator[Found]:
    """And the square of the slope of 2 arcsin sqrt p is one over the variance of a Bernoulli mean."""
    x, p = u.standardized(w.problem, w.R), float(w.E(w.R))
    yield same(w.E(x), 0.0)
    yield same(w.E(x**2), 1.0)
    yield same(u.slope("2 arcsin sqrt(p)", p) ** 2 * p * (1 - p), 1.0)
    yield same(w.Es(x), u.arcsine_gradient(w.problem))


@claim("FRPO-E-current", over=each(u.graded_trees))
def the_sum_begins_with_the_own_log_ratio(w: Enumeration) -> Iterator[Found]:
    """With it the sum has the gradient of the KL, without it not."""
    yield same(u.token_field(w.problem, sum_from_here(w.t.log_ratio)), w.d_kl)
    yield differs(u.token_field(w.problem, u.later(w.t.log_ratio)), w.d_kl)


@claim("FRPO-F1-a-preserve")
def the_decoupled_form_leaves_the_reward_part() -> Iterator[Found]:
    """Added afterwards, the KL of an answer depends on no other answer, and the reward part is as before."""
    for w in each(u.graded_trees)():
        to_go = u.token_field(w.problem, sum_from_here(w.t.log_ratio))
        update = u.standardized_update(w.problem, w.R) - BETA * to_go
        yield same(update + BETA * w.d_kl, u.arcsine_gradient(w.problem))
    w = Enumeration(u.graded_trees()[0])
    p, index = groups(w.problem, 2)
    alone = sum_from_here(w.t.log_ratio)[index] * w.problem.completion_mask[index]
    yield same(mean(p, torch.einsum("git,gitrv->grv", alone, w.t.scores[index]) / 2), w.d_kl)


def _orders(x: torch.Tensor) -> torch.Tensor:
    return (x[..., :, None] - x[..., None, :]).sign()


@claim("FRPO-F1-b-scale", over=each(lambda: u.graded_trees()[:3]))
def the_kl_changes_scale_and_order(w: Enumeration) -> Iterator[Found]:
    """In groups of three: mean, deviation, and which of two answers has the larger advantage."""
    p, index = groups(w.problem, 3)
    rewards, with_kl = w.R[index], u.shaped(w.problem, BETA)[index]
    yield same(p @ (with_kl.mean(-1) - rewards.mean(-1)), -BETA * w.kl)
    yield differs(with_kl.std(-1), rewards.std(-1))
    before, after = (_orders(standardized_or_zero(x)) for x in (rewards, with_kl))
    yield differs(before, after)


@claim("FRPO-F1-b-sigma", over=each(u.graded))
def another_deviation_breaks_the_score(w: Enumeration) -> Iterator[Found]:
    """The deviation is not sqrt(p(1 - p)), and the part of the reward is not the gradient of the arcsine."""
    with_kl = u.shaped(w.problem, BETA)
    spread, plain = (u.deviation(w.problem, x) for x in (with_kl, w.R))
    yield differs(spread, plain)
    update = u.standardized_update(w.problem, with_kl)
    share, _ = u.coordinates(update, u.arcsine_gradient(w.problem), w.d_kl)
    yield same(share, plain / spread)
    yield differs(share, 1.0)


@claim("FRPO-F1-b-tuning")
def no_one_coefficient_repairs_all_policies() -> Iterator[Found]:
    """The coefficient that gives the right direction is beta sqrt(p(1 - p)): another for every pass rate."""
    needed = []
    for p in u.graded():
        right, target = BETA * u.deviation(p, p.rewards), u.decoupled_gradient(p, BETA)
        yield printed(turned(u.standardized_update(p, u.shaped(p, right)), target))
        for other in (BETA / 10, BETA, 10 * BETA):
            yield less(0.0, turned(u.standardized_update(p, u.shaped(p, other)), target))
        needed.append(right)
    yield differs(max(needed), min(needed))


@claim("FRPO-F1-b-uniform", over=each(u.graded_trees))
def all_tokens_of_an_answer_share_the_number(w: Enumeration) -> Iterator[Found]:
    """The update of the shaped reward is that of one number per answer; the KL to go differs by token."""
    to_go = sum_from_here(w.t.log_ratio)[w.problem.completion_mask[:, 1] > 0]
    yield at_most(1e-6, (to_go[:, 0] - to_go[:, 1]).abs())
    yield same(u.token_field(w.problem, u.every_token(w.problem, w.l)), w.d_kl)
