"""Section 3: importance weights of a mixture of experts, and replayed experts (zheng2025stabilizing).

Shown on tiny mixtures of two experts; the inference engine rounds its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

import torch

from kl_book.ledger.claims.checks import Check, claim
from kl_book.ledger.claims.comparisons import Found, differs, inside, less, numbers, printed, same
from kl_book.ledger.claims.ground import off_policy, surrogates
from kl_book.ledger.claims.ground.errors import STRICT, worst
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

LAYERS = 48  # of Qwen3-30B-A3B
RATE = 0.1  # of tokens at which a layer chooses another expert


class RoutedCase(NamedTuple):
    """One mixture in a global step.

    Attributes:
        old: Parameters of the rollout.
        now: Parameters at the update: ``old`` in the first mini-batch.
    """

    old: Mixture
    now: Mixture

    @property
    def training(self) -> torch.Tensor:
        """Experts of the rollout policy in the training engine, [rows]."""
        return routed(self.old)

    @property
    def natural(self) -> torch.Tensor:
        """Experts that the gate of ``now`` chooses, [rows]."""
        return routed(self.now)

    @property
    def sampler(self) -> torch.Tensor:
        """Next-token log-probs of the inference engine, [rows, vocab]."""
        return sampler_logits(self.old).log_softmax(-1)

    def replayed(self, inference: bool) -> torch.Tensor:
        """Experts of the rollout policy in one of the engines, [rows]."""
        return routed(rounded(self.old)) if inference else self.training

    def world(self, target: torch.Tensor, older: torch.Tensor) -> surrogates.Engines:
        """The enumerated world with these experts of target and older policy."""
        return world(logits(self.now, target), logits(self.old, older), sampler_logits(self.old))

    def gradient(self, experts: torch.Tensor) -> Mixture:
        """Gradient of the token objective with these experts of the target."""
        return token_gradient(self.now, experts, sampler_logits(self.old))


def _cases(first: bool) -> list[RoutedCase]:
    """Every mixture at its first mini-batch, or after one update."""
    return [RoutedCase(old, old if first else updated(number)) for number, old in enumerate(mixtures())]


def _every_case() -> list[RoutedCase]:
    return [*_cases(first=True), *_cases(first=False)]


def _product(case: RoutedCase, target: torch.Tensor, older: torch.Tensor) -> Iterator[Found]:
    """The weight is discrepancy times staleness, by hand and from the enumerated world."""
    w = case.world(target, older)
    discrepancy, by_hand = (
        (logp - case.sampler).exp()[w.problem.rows, w.problem.sequences]
        for logp in (logps(case.old, older), logps(case.now, target))
    )
    yield same(w.ratio, discrepancy * w.t.log_ratio.exp())
    yield same(w.ratio, by_hand)
    yield differs(w.ratio, 1.0)


@claim("QW-eq6", over=_every_case)
def weight_of_a_mixture(case: RoutedCase) -> Iterator[Found]:
    """The same product as without experts: the older policy with its own experts cancels."""
    yield from _product(case, case.natural, case.training)


def _distances(first: bool) -> tuple[list[float], list[float]]:
    """KLs of the next token where experts differ: with their own, and with the replayed experts.

    In the first mini-batch from inference to training engine, later from the older policy to the target.
    """
    own, replayed = [], []
    for case in _cases(first):
        start = case.sampler if first else logps(case.old, case.training)
        experts = case.replayed(inference=first)
        if (experts != case.natural).any():
            own.append(divergence_of_tokens(start, logps(case.now, case.natural)))
            replayed.append(divergence_of_tokens(start, logps(case.now, experts)))
    return own, replayed


def _replay(inference: bool) -> Check:
    """A check of target and older policy with the older experts of one of the engines."""

    def check() -> Iterator[Found]:
        for case in _every_case():
            experts = case.replayed(inference)
            yield from _product(case, experts, experts)
        own, replayed = _distances(first=inference)
        yield numbers(mixtures=len(own), own=fmean(own), replayed=fmean(replayed))

    return check


claim("QW-R2")(_replay(inference=False))
claim("QW-R3")(_replay(inference=True))


@claim("QW-3.1-entangled")
def what_other_experts_add() -> Iterator[Found]:
    """In how many mixtures a change of experts adds to either distance."""
    for part, first in (("engines", True), ("update", False)):
        own, replayed = _distances(first)
        larger = sum(a > b for a, b in zip(own, replayed, strict=True))
        yield numbers(**{f"{part}_larger": larger, part: len(own)})


class Alteration(NamedTuple):
    """What replay does to the target policy, over all prefixes of all mixtures.

    Attributes:
        unchanged: Share of prefixes at which the replayed expert is the gate's own.
        error: Error of "the next-token distribution is altered where, and only where, the experts differ".
        reward: Largest change of the expected reward.
    """

    unchanged: float
    error: float
    reward: float


def _alteration(first: bool, inference: bool) -> Alteration:
    """Replay of the experts of one engine, at the first mini-batch or after an update."""
    errors, same_experts, rewards = [0.0], [], []
    for case in _cases(first):
        replayed = case.replayed(inference)
        w = world(logits(case.now, case.natural), logits(case.now, replayed), sampler_logits(case.old))
        moved, other = w.t.log_ratio.abs(), (replayed != case.natural)[w.problem.rows]
        same_experts += (replayed == case.natural).tolist()
        errors += [*moved[~other].tolist(), *(STRICT - moved[other]).tolist()]
        values = [case.world(experts, replayed).expected_reward for experts in (case.natural, replayed)]
        rewards.append(abs(values[0] - values[1]))
    return Alteration(off_policy.share_of_cases(same_experts), worst(errors), max(rewards))


@claim("QW-3.2-bias")
def replay_changes_the_target() -> Iterator[Found]:
    """The policy with replayed experts is another one wherever they are not the gate's own."""
    replays = [_alteration(*kind) for kind in ((False, False), (True, True), (False, True))]
    for replay in replays:
        yield printed(replay.error)
        yield less(0.0, replay.reward)
    yield differs(min(replay.unchanged for replay in replays), 1.0)


@claim("QW-tab1-R2-first")
def the_first_update_replays_its_own_experts() -> Iterator[Found]:
    """With the parameters of the rollout the experts, the policy and the gradient are the same."""
    replay = _alteration(first=True, inference=False)
    yield printed(replay.error)
    yield same(replay.unchanged, 1.0)
    for case in _cases(first=True):
        for own, replayed in zip(case.gradient(case.natural), case.gradient(case.training), strict=True):
            yield same(own, replayed)
    for case in _cases(first=False):
        if (case.natural != case.training).any():
            yield differs(case.gradient(case.natural).experts, case.gradient(case.training).experts)


def _altered_where_experts_differ(first: bool, inference: bool) -> Check:
    """A check that replay alters the policy where the experts differ, and nowhere else."""

    def check() -> Iterator[Found]:
        replay = _alteration(first, inference)
        yield printed(replay.unchanged)
        yield inside(replay.error)
        yield differs(replay.unchanged, 1.0, "inside")
        yield numbers(mixtures=len(mixtures()), unchanged=replay.unchanged)
        yield numbers(layers=LAYERS, rate=RATE, agree=(1 - RATE) ** LAYERS)

    return check


claim("QW-tab1-R2-later")(_altered_where_experts_differ(first=False, inference=False))
claim("QW-tab1-R3-first")(_altered_where_experts_differ(first=True, inference=True))
claim("QW-tab1-R3-later")(_altered_where_experts_differ(first=False, inference=True))
