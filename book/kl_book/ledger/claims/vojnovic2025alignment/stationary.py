"""Section 2.3 and appendix A: the conditions that stationary policies meet (vojnovic2025alignment)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise, product

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import (
    Found,
    at_most,
    corrected,
    differs,
    inside,
    less,
    numbers,
    observed,
    printed,
    same,
)
from kl_book.ledger.claims.ground import questions as ab
from kl_book.ledger.claims.ground.errors import apart
from kl_book.ledger.claims.ground.world import two

GRADED: tuple[ab.Reward, ...] = (0.0, 0.4, 1.0)
Answered = tuple[ab.Question, torch.Tensor]


@cache
def everywhere_positive() -> tuple[Answered, ...]:
    """Stationary policies that give every answer of the reference, in groups of 2, 3, 4 and 8."""
    cases = [ab.question(ab.THREE, beta, GRADED, size) for beta in (0.3, 4.0) for size in (2, 4)]
    cases += [ab.question(ab.THREE, 0.5, ab.NOISY, size) for size in (2, 3)]
    cases.append(ab.pair(0.3, 0.5, ab.CERTAIN, 8))
    return tuple((q, ab.stationary(q)) for q in cases)


@cache
def some_never_sampled() -> tuple[Answered, ...]:
    """Stationary policies that never give some answers which the reference gives."""
    three = ab.question(ab.THREE, 0.5, GRADED, 3)
    collapsed = ab.pair(0.01, 0.04, ab.CERTAIN, 8)
    places = ((ab.pair(0.3, 0.5), (0,)), (three, (1, 2)), (three, (2,)), (collapsed, (0,)))
    return tuple((q, ab.stationary(q, used)) for q, used in places)


def all_stationary() -> tuple[Answered, ...]:
    """Both kinds of stationary policies."""
    return everywhere_positive() + some_never_sampled()


def _lead(q: ab.Question, policy: torch.Tensor) -> torch.Tensor:
    """P_G(o | policy) minus its mean, [count]."""
    p = q.preference(policy)
    return p - policy @ p


@claim("VY-eq11")
def the_condition_of_a_stationary_policy() -> Iterator[Found]:
    """A policy that never gives some answers can be a maximum, and (11) is wrong for those that it gives."""
    for q, policy in all_stationary():
        used, lead = policy > 0, _lead(q, policy) / q.beta
        error = apart(((1 - lead) * policy)[used], q.ref[used])
        yield inside(error) if used.all() else printed(error)
        yield same(((q.ref[used].sum() - lead) * policy)[used], q.ref[used], "corrected")
        no_maximum = max(q.not_stationary(policy), 0.0 if used.all() else q.could_gain(policy))
        yield inside(no_maximum)
        yield corrected(no_maximum)
    collapsed, policy = some_never_sampled()[-1]
    used_slope, other = collapsed.slopes(policy).tolist()
    yield numbers(a=policy[0], rate=used_slope - other)


@claim("VY-A-kkt", over=all_stationary)
def multiplier_and_preference(q: ab.Question, policy: torch.Tensor) -> Iterator[Found]:
    """With lambda the common slope, (1 - (P_G - lambda)/beta) pi is pi_ref wherever pi is positive."""
    used, common = policy > 0, policy @ q.slopes(policy)
    claimed = (1 - (q.preference(policy) - common) / q.beta) * policy
    yield same(claimed[used], q.ref[used])
    yield printed(q.not_stationary(policy))


@claim("VY-A-lambda")
def the_multiplier() -> Iterator[Found]:
    """The sum over the answers in use gives the mean preference only if none is left out."""
    for q, policy in all_stationary():
        mean, common = policy @ q.preference(policy), policy @ q.slopes(policy)
        yield same(mean, common)
        yield same(mean - q.beta * (1 - q.ref[policy > 0].sum()), common, "corrected")
        if (policy > 0).all():
            yield same(mean, common, "inside")
    q, policy = some_never_sampled()[0]
    yield numbers(multiplier=policy @ q.slopes(policy), mean=policy @ q.preference(policy))


@claim("VY-2.3-bound", over=all_stationary)
def no_answer_in_use_is_preferred_by_more_than_beta(q: ab.Question, policy: torch.Tensor) -> Iterator[Found]:
    """P_G(o) stays below E P_G + beta, also where some answers are never given."""
    used = policy > 0
    lead, ref = _lead(q, policy)[used], q.ref[used]
    yield less(float(lead.max()), q.beta)
    yield printed(q.not_stationary(policy))
    yield same(lead, q.beta * (ref.sum() - ref / policy[used]))  # so that the bound is never reached
    yield observed(lead.max() / q.beta)


@claim("VY-2.3-within")
def worse_answers_are_further_than_beta() -> Iterator[Found]:
    """Only above the mean is beta a bound: an answer in use may be any distance below it."""
    for q, policy in everywhere_positive():
        lead = _lead(q, policy)
        yield at_most(lead.abs().max() / q.beta, 1.0)
        yield same(q.beta * (1 - q.ref / policy), lead, "corrected")
    q = ab.pair(0.3, 0.04)
    policy = ab.stationary(q)
    advantage = float(_lead(q, policy)[1])
    yield numbers(worse=policy[1], below=-advantage, in_beta=-advantage / q.beta, advantage=advantage)


@claim("VY-2.3-g", over=everywhere_positive)
def the_reference_times_a_function_of_the_preference(q: ab.Question, policy: torch.Tensor) -> Iterator[Found]:
    """pi is pi_ref / (1 - lead/beta), and not pi_ref e^(lead/beta) / Z."""
    lead = _lead(q, policy) / q.beta
    pool = q.ref * lead.exp()
    yield same(q.ref / (1 - lead), policy)
    yield differs(pool / pool.sum(), policy)


TIED: tuple[ab.Reward, ...] = (((0.0, 1.0, 2.0), (0.2, 0.3, 0.5)), ab.right_or_wrong(0.5), 1.0)


@claim("VY-eq12", over=lambda: product((GRADED, ab.NOISY, TIED), (0.3, 1.0)))
def the_condition_for_groups_of_two(rewards: tuple[ab.Reward, ...], beta: float) -> Iterator[Found]:
    """The preference is the chance to win minus the chance to lose, also for random rewards and ties."""
    q = ab.question(ab.THREE, beta, rewards, 2)
    policy = ab.stationary(q)
    yield same((1 - q.margins @ policy / beta) * policy, q.ref)
    yield printed(q.not_stationary(policy))


FALLS = 0.7  # an error of 1/G halves where G doubles


def _residual(q: ab.Question) -> float:
    """By how much a stationary policy of finite groups misses (13)."""
    policy = ab.stationary_pair(q) if len(q.reference) == 2 else ab.stationary(q)
    lead = (q.r - policy @ q.r) / (q.beta * q.rewards.deviation(policy))
    return apart((1 - lead) * policy, q.ref)


def _in_growing_groups() -> Iterator[tuple[ab.Question, tuple[int, ...]]]:
    """Questions, and sizes of groups."""
    yield ab.question(ab.THREE, 1.0, GRADED, None), (8, 16)
    yield ab.pair(0.3, 0.5, ab.CERTAIN, None), (16, 32, 64)
    yield ab.pair(0.3, 0.5, (ab.right_or_wrong(0.9), ab.right_or_wrong(0.2)), None), (4, 8, 16)


@claim("VY-eq13", over=_in_growing_groups)
def the_condition_for_large_groups(q: ab.Question, sizes: tuple[int, ...]) -> Iterator[Found]:
    """Stationary policies of finite groups meet (13) but for an error that falls with 1/G."""
    missed = [_residual(q._replace(size=size)) for size in sizes]
    yield from (at_most(after, FALLS * before) for before, after in pairwise(missed))
    yield at_most(missed[-1] * sizes[-1], 1.0)
    yield observed(missed[-1] * sizes[-1])


REWARDS = torch.tensor((0.0, 0.1, 1.0), dtype=torch.float64)
SPREAD, NARROW = (0.49, 0.49, 0.02), (0.85, 0.05, 0.1)
Probabilities = tuple[float, ...]


def _variance(policy: Probabilities) -> float:
    return two(policy, ab.THREE).var(REWARDS)


def _parts(policy: Probabilities) -> torch.Tensor:
    """p (1-p) (r - m)^2 + (1-p) v: the variance from the most likely answer and from the others."""
    probabilities = torch.tensor(policy, dtype=torch.float64)
    top = int(probabilities.argmax())
    p, r = probabilities[top], REWARDS[top]
    others = probabilities.index_fill(0, torch.tensor([top]), 0.0) / (1 - p)
    m = others @ REWARDS
    v = others @ (REWARDS - m).square()
    return p * (1 - p) * (r - m).square() + (1 - p) * v


@claim("VY-eq13-beta")
def deviation_and_concentration() -> Iterator[Found]:
    """A policy can be more concentrated on one answer and have a larger deviation of the reward."""
    pairs = ((SPREAD, NARROW), ((0.4, 0.3, 0.3), (0.9, 0.05, 0.05)), ((0.5, 0.49, 0.01), (0.7, 0.1, 0.2)))
    for policies in pairs:
        before, after = (_variance(policy) ** 0.5 for policy in policies)
        yield at_most(after / before, 1.0)
        for policy in policies:
            yield same(_variance(policy), _parts(policy), "corrected")
    before, after = _variance(SPREAD) ** 0.5, _variance(NARROW) ** 0.5
    yield numbers(spread=SPREAD, before=before, narrow=NARROW, after=after, solved=(0.02 * 0.98) ** 0.5)
