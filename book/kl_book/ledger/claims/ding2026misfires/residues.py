"""Section 3, lemma, F1 to F3 and F6: what a KL loss does where the reward does nothing (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import (
    contributions,
    gates,
    k3_slopes,
    stale,
    surrogate_slopes,
    token_ratios,
)
from kl_book.ledger.claims.ground.errors import apart, differs, less, violation, worst
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.worlds import bandits, trees
from kl_companion.tabular import Problem

BETA = 0.04
SIZE = 3


def _by_hand(problem: Problem) -> torch.Tensor:
    """1 - exp(-Delta) of every token, 0 outside the mask, [count, length]."""
    return (1 - (-terms(problem).log_ratio).exp()) * problem.completion_mask


def _every_group(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """All groups as indices, and their standardized rewards, [groups, n]."""
    index = groups(problem, SIZE)[1]
    return index, standardized_or_zero(problem.rewards[index])


@claim("ZCPO-eq1")
def gradient_of_a_token() -> Iterator[Found]:
    """-a r g m + beta grad KL, for every token of every group; a closed gate is where the clip is flat."""
    errors, closed = [], 0.0
    for problem in stale():
        index, advantage = _every_group(problem)
        found = surrogate_slopes(problem, index, advantage) + BETA * k3_slopes(problem)[index]
        ratio, mask = token_ratios(problem)[index], problem.completion_mask[index]
        gate = gates(ratio, advantage[..., None])
        printed = -advantage[..., None] * ratio * gate * mask + BETA * _by_hand(problem)[index]
        errors.append(apart(contributions(problem, index, found), contributions(problem, index, printed)))
        closed += float(((1 - gate) * mask).sum())
    errors.append(violation(1.0 - closed))
    yield from each_form(worst(errors), SIZE=SIZE)


@claim("ZCPO-lemma")
def the_kl_remains_at_clipped_tokens() -> Iterator[Found]:
    """Where the gate is closed the reward's slope is 0, and the token's own gradient is that of k3 alone."""
    errors, shares = [], []
    for problem in stale():
        index, advantage = _every_group(problem)
        slopes, mask = surrogate_slopes(problem, index, advantage), problem.completion_mask[index] > 0
        closed = (gates(token_ratios(problem)[index], advantage[..., None]) == 0) & mask
        shares.append(float(closed.sum() / mask.sum()))
        if not closed.any():
            continue
        total = slopes + BETA * k3_slopes(problem)[index]
        errors.append(apart(slopes[closed], 0.0))
        errors.append(apart(total[closed], BETA * _by_hand(problem)[index][closed]))
        errors.append(violation(1e-6 - float(total[closed].abs().min())))
    errors.append(violation(0.01 - max(shares)))
    yield from each_form(worst(errors), SIZE=SIZE, max_shares=max(shares))


def _first_token_shared(problem: Problem, index: torch.Tensor) -> torch.Tensor:
    """Which groups have one first token, and different answers."""
    first = problem.sequences[index][..., 0]
    return (first == first[:, :1]).all(-1) & ~(index == index[:, :1]).all(-1)


def _on_policy_trees() -> tuple[Problem, ...]:
    """Trees at the sampler itself: every gate is open."""
    return tuple(p._replace(behavior_logits=None) for p in stale() if p.rows.shape[1] > 1)


@claim("ZCPO-F2")
def reward_gradients_cancel_at_a_shared_token() -> Iterator[Found]:
    """At the first token that a group shares they add up to 0; the KL's add up to n times that of one."""
    errors = []
    for problem in _on_policy_trees():
        index, advantage = _every_group(problem)
        shared = _first_token_shared(problem, index) & (advantage.abs().sum(-1) > 0)
        slopes = surrogate_slopes(problem, index, advantage)[shared][..., 0]
        kl = BETA * k3_slopes(problem)[index][shared][..., 0]
        errors.append(apart(slopes.sum(-1), 0.0))
        errors.append(apart(kl.sum(-1), SIZE * BETA * _by_hand(problem)[index][shared][..., 0][:, 0]))
        errors.append(violation(1e-6 - float(kl.sum(-1).abs().min())))
        errors.append(violation(1e-6 - float(slopes.abs().amax(-1).min())))
    yield from each_form(worst(errors))


@claim("ZCPO-F3")
def groups_with_equal_rewards_follow_the_kl() -> Iterator[Found]:
    """Every advantage is 0, and the gradient is the KL's."""
    errors, chance = [], []
    for problem in stale():
        p, index = groups(problem, SIZE)
        rewards = problem.rewards[index]
        equal = (rewards == rewards[:, :1]).all(-1)
        advantage = standardized_or_zero(rewards)[equal]
        slopes = surrogate_slopes(problem, index[equal], advantage)
        total = slopes + BETA * k3_slopes(problem)[index[equal]]
        errors += [apart(advantage, 0.0), apart(slopes, 0.0)]
        errors.append(apart(total, BETA * _by_hand(problem)[index[equal]]))
        errors.append(differs(contributions(problem, index[equal], total).sum((1, 2)), 0.0))
        chance.append(float(p[equal].sum()))
    yield from each_form(worst(errors), min_chance=min(chance), max_chance=max(chance), SIZE=SIZE)


@claim("ZCPO-F6-k3grad")
def derivative_of_k3() -> Iterator[Found]:
    """(1 - exp(-Delta)) times the score, for every token."""
    errors = []
    for problem in (*bandits(), *trees()):
        every = torch.arange(len(problem.sequences))[:, None]
        found = contributions(problem, every, k3_slopes(problem)[every])
        errors.append(apart(found, contributions(problem, every, _by_hand(problem)[every])))
    yield from each_form(worst(errors))


STEP = 1e-3


@claim("ZCPO-F6-pull")
def a_step_against_k3_goes_to_the_reference() -> Iterator[Found]:
    """A step of one token's own loss brings its log-prob nearer to the reference, and not beyond."""
    errors = []
    for problem in bandits():
        t = terms(problem)
        logits = problem.logits[0] - STEP * k3_slopes(problem) * t.scores[:, 0, 0]
        moved = logits.log_softmax(-1).diagonal()
        before, after = t.log_ratio[:, 0], moved - t.ref_logp[:, 0]
        errors.append(violation(float((after.abs() - before.abs()).max())))
        errors.append(violation(-float((before * after).min())))
        errors.append(violation(1e-12 - float((before - after).abs().min())))
    yield from each_form(worst(errors), STEP=STEP)


@claim("ZCPO-F6")
def the_kl_opposes_a_push_away() -> Iterator[Found]:
    """The two steps of a token are opposed exactly where advantage and log-ratio have one sign."""
    errors = []
    for problem in stale():
        index, advantage = _every_group(problem)
        ratio, away = token_ratios(problem)[index], advantage[..., None] * terms(problem).log_ratio[index]
        active = (away != 0) & (gates(ratio, advantage[..., None]) > 0)
        reward, kl = -surrogate_slopes(problem, index, advantage), -k3_slopes(problem)[index]
        opposed = (reward * kl)[active] < 0
        errors.append(float((opposed != (away[active] > 0)).double().mean()))
        conflict = active & (away > 0)
        weakened = reward[conflict].abs() - (reward + 1e-3 * kl)[conflict].abs()
        errors.append(less(0.0, float(weakened.min()), by=1e-12))
    yield from each_form(worst(errors))
