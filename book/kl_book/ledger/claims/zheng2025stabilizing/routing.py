"""Section 3: importance weights of a mixture of experts, and replayed experts (zheng2025stabilizing).

Shown on tiny mixtures of two experts; the inference engine rounds its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.calibration import token_ratios
from kl_book.ledger.claims.ground.errors import apart, differs, worst
from kl_book.ledger.claims.ground.mixtures import (
    Mixture,
    divergence_of_tokens,
    logits,
    logps,
    mixtures,
    rounded,
    routed,
    sampler_logits,
    token_gradient,
    updated,
    world,
)
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.surrogates import expected_reward
from kl_companion.tabular import Problem

LAYERS = 48  # of Qwen3-30B-A3B


class RoutedCase(NamedTuple):
    """One mixture in a global step.

    Attributes:
        old: Parameters of the rollout.
        now: Parameters at the update: ``old`` in the first mini-batch.
        in_training, in_inference: Experts of the rollout policy in the two engines, [rows].
        natural: Experts that the gate of ``now`` chooses, [rows].
    """

    old: Mixture
    now: Mixture
    in_training: torch.Tensor
    in_inference: torch.Tensor
    natural: torch.Tensor


def _cases(first: bool) -> Iterator[RoutedCase]:
    """Every mixture at its first mini-batch, or after one update."""
    for number, old in enumerate(mixtures()):
        now = old if first else updated(number)
        yield RoutedCase(old, now, routed(old), routed(rounded(old)), routed(now))


def _every_case() -> list[RoutedCase]:
    return [*_cases(first=True), *_cases(first=False)]


def _world(case: RoutedCase, target: torch.Tensor, older: torch.Tensor) -> Problem:
    """The enumerated world with these experts of target and older policy."""
    return world(logits(case.now, target), logits(case.old, older), sampler_logits(case.old))


def _product_error(case: RoutedCase, target: torch.Tensor, older: torch.Tensor) -> float:
    """Error of "weight = discrepancy times staleness", by hand and from the enumerated world."""
    problem = _world(case, target, older)
    sampler = logps(rounded(case.old), case.in_inference)
    discrepancy = (logps(case.old, older) - sampler).exp()[problem.rows, problem.sequences]
    staleness = terms(problem).log_ratio.exp()
    by_hand = (logps(case.now, target) - sampler).exp()[problem.rows, problem.sequences]
    weight = token_ratios(problem)
    return worst((apart(weight, discrepancy * staleness), apart(weight, by_hand), differs(weight, 1.0)))


@claim("QW-eq6")
def weight_of_a_mixture() -> Iterator[Found]:
    """The same product as without experts: the older policy with its own experts cancels."""
    yield from each_form(worst(_product_error(c, c.natural, c.in_training) for c in _every_case()))


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


@claim("QW-R2")
def replay_of_the_training_engine() -> Iterator[Found]:
    """Target and older policy with the older training experts: the discrepancy stays as it is."""
    errors, plain, replayed = [], [], []
    for case in _every_case():
        errors.append(_product_error(case, case.in_training, case.in_training))
    for case in _cases(first=False):
        if (case.natural == case.in_training).all():
            continue
        old = logps(case.old, case.in_training)
        plain.append(divergence_of_tokens(old, logps(case.now, case.natural)))
        replayed.append(divergence_of_tokens(old, logps(case.now, case.in_training)))
    yield from each_form(
        worst(errors), number_of_plain=len(plain), mean_plain=_mean(plain), mean_replayed=_mean(replayed)
    )


@claim("QW-R3")
def replay_of_the_inference_engine() -> Iterator[Found]:
    """Target and older policy with the experts of the inference engine."""
    errors, plain, replayed = [], [], []
    for case in _every_case():
        errors.append(_product_error(case, case.in_inference, case.in_inference))
    for case in _cases(first=True):
        if (case.in_inference == case.in_training).all():
            continue
        sampler = logps(rounded(case.old), case.in_inference)
        plain.append(divergence_of_tokens(sampler, logps(case.old, case.in_training)))
        replayed.append(divergence_of_tokens(sampler, logps(case.old, case.in_inference)))
    yield from each_form(
        worst(errors), number_of_plain=len(plain), mean_plain=_mean(plain), mean_replayed=_mean(replayed)
    )


class Alteration(NamedTuple):
    """What replay does to the target policy, over all prefixes of all mixtures.

    Attributes:
        unchanged: Share of prefixes at which the replayed expert is the gate's own.
        error: Error of "the next-token distribution is altered where, and only where, the experts differ".
    """

    unchanged: float
    error: float


def _alteration(first: bool, inference: bool) -> Alteration:
    """Replay of the experts of one engine, at the first mini-batch or after an update."""
    errors, same = [], []
    for case in _cases(first):
        replayed = case.in_inference if inference else case.in_training
        problem = world(logits(case.now, case.natural), logits(case.now, replayed), sampler_logits(case.old))
        moved = terms(problem).log_ratio.abs()
        other = (replayed != case.natural)[problem.rows]
        same += (replayed == case.natural).tolist()
        errors.append(apart(moved[~other], 0.0) if (~other).any() else 0.0)
        errors.append(max(0.0, 1e-6 - float(moved[other].min())) if other.any() else 0.0)
    return Alteration(share_of_cases(same), worst(errors))


def _expected_reward_moves(first: bool, inference: bool) -> bool:
    """Whether replay changes the expected reward of some mixture."""
    for case in _cases(first):
        replayed = case.in_inference if inference else case.in_training
        values = [expected_reward(_world(case, experts, replayed))[0] for experts in (case.natural, replayed)]
        if abs(values[0] - values[1]) > 1e-6:
            return True
    return False


@claim("QW-3.2-bias")
def replay_changes_the_target() -> Iterator[Found]:
    """The policy with replayed experts is another one wherever they are not the gate's own."""
    kinds = ((False, False), (True, True), (False, True))
    errors = [_alteration(*kind).error for kind in kinds]
    errors += [float(not _expected_reward_moves(*kind)) for kind in kinds]
    errors.append(differs(min(_alteration(*kind).unchanged for kind in kinds), 1.0))
    yield from each_form(worst(errors))


@claim("QW-tab1-R2-first")
def the_first_update_replays_its_own_experts() -> Iterator[Found]:
    """With the parameters of the rollout the experts, the policy and the gradient are the same."""
    found, errors = _alteration(first=True, inference=False), []
    for case in _cases(first=True):
        sampler = sampler_logits(case.old)
        pair = [token_gradient(case.now, experts, sampler) for experts in (case.natural, case.in_training)]
        errors += [apart(a, b) for a, b in zip(*pair, strict=True)]
    later = [
        differs(token_gradient(c.now, c.natural, sampler_logits(c.old)).experts, _replayed(c).experts)
        for c in _cases(first=False)
        if (c.natural != c.in_training).any()
    ]
    yield from each_form(worst([*errors, *later, found.error, 1 - found.unchanged]))


def _replayed(case: RoutedCase) -> Mixture:
    """Gradient with the experts of the rollout in the training engine."""
    return token_gradient(case.now, case.in_training, sampler_logits(case.old))


def _altered_where_experts_differ(first: bool, inference: bool, where: str) -> Evidence:
    found = _alteration(first, inference)
    rate = 0.1
    return Evidence(
        found.unchanged,
        inside=worst((found.error, differs(found.unchanged, 1.0))),
        unit="share of cases",
        condition=f"the two sets of experts differ at the token ({where})",
        given=(
            'stated in 3.2, in its title ("may introduce bias"), and in 4.3: routing replay can alter the '
            "target policy"
        ),
        counterexample=(
            f"{len(mixtures())} mixtures of two experts: at {found.unchanged:.0%} of the prefixes the "
            "replayed expert is the one that the gate chooses, and there the policy is not altered"
        ),
        practice=(
            f"With many layers most tokens are altered: if each of {LAYERS} layers chose other experts for "
            f"{rate:.0%} of the tokens, independently, all layers would agree for "
            f"{(1 - rate) ** LAYERS:.1%} of them."
        ),
    )


@claim("QW-tab1-R2-later")
def later_updates_may_choose_other_experts() -> Evidence:
    """After an update the gate may choose otherwise; where it does not, nothing is altered."""
    return _altered_where_experts_differ(False, False, "the updates since the rollout moved the gate enough")


@claim("QW-tab1-R3-first")
def the_engines_may_choose_different_experts() -> Evidence:
    """The engines may disagree on a token; where they do not, nothing is altered."""
    return _altered_where_experts_differ(True, True, "the engines disagree on it")


@claim("QW-tab1-R3-later")
def engines_and_updates_may_choose_different_experts() -> Evidence:
    """Engines and updates may change the choice; where they do not, nothing is altered."""
    return _altered_where_experts_differ(False, True, "the engines disagree on it, or the gate has moved")
