"""Section 2.3 and appendix A: the conditions that stationary policies meet (vojnovic2025alignment)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, violation, worst
from kl_book.ledger.claims.ground.stationary_policies import (
    NOISY,
    THREE,
    Question,
    could_gain,
    deviation,
    expected_rewards,
    margins,
    not_stationary,
    preference,
    question,
    reference_of,
    right_or_wrong,
    slopes,
    stationary,
)
from kl_book.ledger.claims.ground.two_answers import (
    stationary_pair,
)
from kl_book.ledger.claims.ground.updates import deviation as deviation_of
from kl_book.ledger.claims.ground.worlds import two_policies

GRADED = (0.0, 0.4, 1.0)
BETAS = (0.3, 4.0)
Answered = tuple[Question, torch.Tensor]


@cache
def everywhere_positive() -> tuple[Answered, ...]:
    """Stationary policies that give every answer of the reference, in groups of 2, 3, 4 and 8."""
    cases = [question(THREE, beta, GRADED, size) for beta in BETAS for size in (2, 4)]
    cases += [question(THREE, 0.5, NOISY, size) for size in (2, 3)]
    cases.append(question((0.3, 0.7), 0.5, (1.0, 0.0), 8))
    return tuple((q, stationary(q)) for q in cases)


@cache
def some_never_given() -> tuple[Answered, ...]:
    """Stationary policies that never give some answers which the reference gives."""
    pair, three = question((0.3, 0.7), 0.5, (1.0, 0.0), 2), question(THREE, 0.5, GRADED, 3)
    collapsed = question((0.01, 0.99), 0.04, (1.0, 0.0), 8)
    places = ((pair, (0,)), (three, (1, 2)), (three, (2,)), (collapsed, (0,)))
    return tuple((q, stationary(q, used)) for q, used in places)


def _all_found() -> tuple[Answered, ...]:
    return everywhere_positive() + some_never_given()


def _lead(q: Question, policy: torch.Tensor) -> torch.Tensor:
    """P_G(o | policy) minus its mean, [count]."""
    p = preference(q, policy)
    return p - policy @ p


def _not_a_maximum(q: Question, policy: torch.Tensor) -> float:
    """Error of "no policy is better in groups of this one": first order, and a grid of policies."""
    return max(not_stationary(q, policy), could_gain(q, policy))


def _outside(q: Question, policy: torch.Tensor) -> float:
    """By how much the slope of the answer in use exceeds that of the other one."""
    used, other = slopes(q, policy).tolist()
    return used - other


@claim("VY-eq11")
def the_condition_of_a_stationary_policy() -> Iterator[Found]:
    """A policy that never gives some answers can be a maximum, and (11) is wrong for those that it gives."""
    printed, corrected, inside = [], [], []
    for q, policy in _all_found():
        used, ref, lead = policy > 0, reference_of(q), _lead(q, policy) / q.beta
        found = apart(((1 - lead) * policy)[used], ref[used])
        printed.append(found)
        corrected.append(apart(((ref[used].sum() - lead) * policy)[used], ref[used]))
        if used.all():
            inside.append(found)
    wrong = [_not_a_maximum(q, policy) for q, policy in some_never_given()]
    wrong += [not_stationary(q, policy) for q, policy in everywhere_positive()]
    small, always = some_never_given()[-1]
    yield from each_form(
        worst([*printed, *wrong]),
        worst([*corrected, *wrong]),
        inside=worst([*inside, *wrong]),
        size=small.size,
        beta=small.beta,
        number=small.reference[0],
        float=float(always[0]),
        number_2=small.reference[1],
        outside_small=_outside(small, always),
    )


@claim("VY-A-kkt")
def multiplier_and_preference() -> Iterator[Found]:
    """With lambda the common slope, (1 - (P_G - lambda)/beta) pi is pi_ref wherever pi is positive."""
    errors = []
    for q, policy in _all_found():
        used, common = policy > 0, policy @ slopes(q, policy)
        wanted = (1 - (preference(q, policy) - common) / q.beta) * policy
        errors += [apart(wanted[used], reference_of(q)[used]), not_stationary(q, policy)]
    yield from each_form(worst(errors))


@claim("VY-A-lambda")
def the_multiplier() -> Iterator[Found]:
    """The sum over the answers in use gives the mean preference only if none is left out."""
    printed, corrected, inside = [], [], []
    for q, policy in _all_found():
        mean, common = policy @ preference(q, policy), policy @ slopes(q, policy)
        given = reference_of(q)[policy > 0].sum()
        printed.append(apart(mean, common))
        corrected.append(apart(mean - q.beta * (1 - given), common))
        if bool((policy > 0).all()):
            inside.append(apart(mean, common))
    (q, policy), (small, _) = some_never_given()[0], some_never_given()[-1]
    yield from each_form(
        worst(printed),
        worst(corrected),
        inside=worst(inside),
        beta=q.beta,
        number=q.reference[0],
        float=float(policy @ slopes(q, policy)),
        float_2=float(policy @ preference(q, policy)),
        beta_2=small.beta,
        number_2=small.beta * small.reference[1],
        number_3=small.reference[1],
    )


@claim("VY-2.3-bound")
def no_answer_in_use_is_preferred_by_more_than_beta() -> Iterator[Found]:
    """P_G(o) stays below E P_G + beta, also where some answers are never given."""
    errors, closest = [], []
    for q, policy in _all_found():
        lead = _lead(q, policy)[policy > 0]
        errors += [less(float(lead.max()), q.beta), not_stationary(q, policy)]
        ratio = policy[policy > 0] / reference_of(q)[policy > 0]
        given = reference_of(q)[policy > 0].sum()
        errors.append(apart(lead, q.beta * (given - 1 / ratio)))  # so that the bound is never reached
        closest.append(float(lead.max()) / q.beta)
    yield from each_form(worst(errors), max_closest=max(closest))


@claim("VY-2.3-within")
def worse_answers_are_further_than_beta() -> Iterator[Found]:
    """Only above the mean is beta a bound: an answer in use may be any distance below it."""
    printed, corrected = [], []
    for q, policy in everywhere_positive():
        lead, ref = _lead(q, policy), reference_of(q)
        printed.append(violation(float(lead.abs().max()) - q.beta) / q.beta)
        corrected.append(apart(q.beta * (1 - ref / policy), lead))
    q = question((0.3, 0.7), 0.04, (1.0, 0.0), 2)
    policy = stationary(q)
    below = -float(_lead(q, policy)[1])
    yield from each_form(
        worst(printed),
        worst(corrected),
        beta=q.beta,
        number=q.reference[0],
        float=float(policy[1]),
        below=below,
        number_2=below / q.beta,
        number_3=-below,
    )


@claim("VY-2.3-g")
def the_reference_times_a_function_of_the_preference() -> Iterator[Found]:
    """pi is pi_ref / (1 - lead/beta), and not pi_ref e^(lead/beta) / Z."""
    errors = []
    for q, policy in everywhere_positive():
        ref, lead = reference_of(q), _lead(q, policy) / q.beta
        pool = ref * lead.exp()
        errors += [apart(ref / (1 - lead), policy), differs(pool / pool.sum(), policy)]
    yield from each_form(worst(errors))


@claim("VY-eq12")
def the_condition_for_groups_of_two() -> Iterator[Found]:
    """The preference is the chance to win minus the chance to lose, also for random rewards and ties."""
    errors = []
    tied = (((0.0, 1.0, 2.0), (0.2, 0.3, 0.5)), ((0.0, 1.0), (0.5, 0.5)), 1.0)
    for rewards in (GRADED, NOISY, tied):
        for beta in (0.3, 1.0):
            q = question(THREE, beta, rewards, 2)
            policy = stationary(q)
            won = margins(q) @ policy
            errors += [apart((1 - won / beta) * policy, reference_of(q)), not_stationary(q, policy)]
    yield from each_form(worst(errors))


FALLS = 0.7  # an error of 1/G halves where G doubles


def _residual(q: Question) -> float:
    """By how much a stationary policy of finite groups misses (13)."""
    policy = stationary_pair(q) if len(q.reference) == 2 else stationary(q)
    r = expected_rewards(q)
    lead = (r - policy @ r) / (q.beta * deviation(q, policy))
    return apart((1 - lead) * policy, reference_of(q))


@claim("VY-eq13")
def the_condition_for_large_groups() -> Iterator[Found]:
    """Stationary policies of finite groups meet (13) but for an error that falls with 1/G."""
    errors, last = [], []
    cases: list[tuple[Question, tuple[int, ...]]] = [(question(THREE, 1.0, GRADED, None), (8, 16))]
    cases.append((question((0.3, 0.7), 0.5, (1.0, 0.0), None), (16, 32, 64)))
    cases.append((question((0.3, 0.7), 0.5, (right_or_wrong(0.9), right_or_wrong(0.2)), None), (4, 8, 16)))
    for q, sizes in cases:
        missed = [_residual(q._replace(size=size)) for size in sizes]
        errors += [violation(b - FALLS * a) for a, b in pairwise(missed)]
        last.append(missed[-1] * sizes[-1])
        errors.append(violation(last[-1] - 1))
    yield from each_form(worst(errors), max_last=max(last))


def _deviations(first: tuple[float, ...], second: tuple[float, ...]) -> list[float]:
    """Deviation of the rewards under two policies."""
    rewards = torch.tensor((0.0, 0.1, 1.0), dtype=torch.float64)
    return [deviation_of(two_policies(p, THREE)._replace(rewards=rewards), rewards) for p in (first, second)]


def _parts(policy: tuple[float, ...], rewards: torch.Tensor) -> torch.Tensor:
    """p (1-p) (r - m)^2 + (1-p) v: the variance from the most likely answer and from the others."""
    probabilities = torch.tensor(policy, dtype=torch.float64)
    top = int(probabilities.argmax())
    p, r = probabilities[top], rewards[top]
    others = probabilities.index_fill(0, torch.tensor([top]), 0.0) / (1 - p)
    m = others @ rewards
    v = others @ (rewards - m).square()
    return p * (1 - p) * (r - m).square() + (1 - p) * v


@claim("VY-eq13-beta")
def deviation_and_concentration() -> Iterator[Found]:
    """A policy can be more concentrated on one answer and have a larger deviation of the reward."""
    spread, narrow = (0.49, 0.49, 0.02), (0.85, 0.05, 0.1)
    pairs = [(spread, narrow), ((0.4, 0.3, 0.3), (0.9, 0.05, 0.05)), ((0.5, 0.49, 0.01), (0.7, 0.1, 0.2))]
    rewards = torch.tensor((0.0, 0.1, 1.0), dtype=torch.float64)
    printed, corrected = [], []
    for first, second in pairs:
        before, after = _deviations(first, second)
        printed.append(violation(after / before - 1))
        for policy, found in ((first, before), (second, after)):
            corrected.append(apart(found**2, _parts(policy, rewards)))
    before, after = _deviations(spread, narrow)
    yield from each_form(
        worst(printed),
        worst(corrected),
        spread=spread,
        before=before,
        narrow=narrow,
        after=after,
        number=0.02,
        number_2=(0.02 * 0.98) ** 0.5,
    )
