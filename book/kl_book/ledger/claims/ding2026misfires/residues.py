"""Section 3, lemma, F1 to F3 and F6: what a KL loss does where the reward does nothing (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground.calibration import AnswerGroups, every_group, k3_slopes, stale
from kl_book.ledger.claims.ground.groups import groups
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.worlds import bandits, worlds
from kl_companion.tabular import Problem

BETA = 0.04
SIZE = 3


def _groups() -> list[AnswerGroups]:
    """All groups of worlds that an older policy samples."""
    return [every_group(problem, SIZE) for problem in stale()]


def _by_hand(g: AnswerGroups) -> torch.Tensor:
    """1 - exp(-Delta) of every token, 0 outside the mask, [groups, n, length]."""
    return (1 - (-g.log_ratio).exp()) * g.mask


@claim("ZCPO-eq1")
def gradient_of_a_token() -> Iterator[Found]:
    """-a r g m + beta grad KL, for every token of every group; a closed gate is where the clip is flat."""
    closed = 0.0
    for g in _groups():
        gate = g.gates(g.advantage)
        by_hand = -g.advantage[..., None] * g.ratio * gate * g.mask + BETA * _by_hand(g)
        slopes = g.slopes(g.advantage) + BETA * g.k3
        yield same(g.contributions(slopes), g.contributions(by_hand))
        closed += float(((1 - gate) * g.mask).sum())
    yield less(0.0, closed, by=1.0)
    yield numbers(size=SIZE)


@claim("ZCPO-lemma")
def the_kl_remains_at_clipped_tokens() -> Iterator[Found]:
    """Where the gate is closed the reward's slope is 0, and the token's own gradient is that of k3 alone."""
    shares = []
    for g in _groups():
        slopes, closed = g.slopes(g.advantage), (g.gates(g.advantage) == 0) & (g.mask > 0)
        shares.append(float(closed.sum() / g.mask.sum()))
        if closed.any():
            total = (slopes + BETA * g.k3)[closed]
            yield same(slopes[closed], 0.0)
            yield same(total, BETA * _by_hand(g)[closed])
            yield less(0.0, float(total.abs().min()))
    yield less(0.01, max(shares), by=0.0)
    yield numbers(size=SIZE, most=max(shares))


@claim("ZCPO-F2")
def reward_gradients_cancel_at_a_shared_token() -> Iterator[Found]:
    """At the first token that a group shares they add up to 0; the KL's add up to n times that of one."""
    for problem in (p._replace(behavior_logits=None) for p in stale() if p.rows.shape[1] > 1):
        g = every_group(problem, SIZE)  # at the sampler itself: every gate is open
        g = g.where(g.one_start & ~(g.answers == g.answers[:, :1]).all(-1) & (g.advantage.abs().sum(-1) > 0))
        slopes, kl = g.slopes(g.advantage)[..., 0], BETA * g.k3[..., 0]
        yield same(slopes.sum(-1), 0.0)
        yield same(kl.sum(-1), SIZE * BETA * _by_hand(g)[:, 0, 0])
        yield less(0.0, float(kl.sum(-1).abs().min()))
        yield less(0.0, float(slopes.abs().amax(-1).min()))


@claim("ZCPO-F3")
def groups_with_equal_rewards_follow_the_kl() -> Iterator[Found]:
    """Every advantage is 0, and the gradient is the KL's."""
    chance = []
    for g in _groups():
        chance.append(float(groups(g.problem, SIZE)[0][g.equal].sum()))
        g = g.where(g.equal)
        slopes = g.slopes(g.advantage)
        yield same(g.advantage, 0.0)
        yield same(slopes, 0.0)
        yield same(slopes + BETA * g.k3, BETA * _by_hand(g))
        yield differs(g.contributions(slopes + BETA * g.k3).sum((1, 2)), 0.0)
    yield numbers(least=min(chance), most=max(chance), size=SIZE)


@claim("ZCPO-F6-k3grad", over=worlds)
def derivative_of_k3(problem: Problem) -> Iterator[Found]:
    """(1 - exp(-Delta)) times the score, for every token."""
    g = every_group(problem, 1)
    yield same(g.contributions(g.k3), g.contributions(_by_hand(g)))


STEP = 1e-3


@claim("ZCPO-F6-pull")
def a_step_against_k3_goes_to_the_reference() -> Iterator[Found]:
    """A step of one token's own loss brings its log-prob nearer to the reference, and not beyond."""
    for problem in bandits():
        t = terms(problem)
        logits = problem.logits[0] - STEP * k3_slopes(problem) * t.scores[:, 0, 0]
        before, after = t.log_ratio[:, 0], logits.log_softmax(-1).diagonal() - t.ref_logp[:, 0]
        yield at_most(after.abs(), before.abs())
        yield at_most(0.0, before * after)
        yield less(0.0, float((before - after).abs().min()), by=1e-12)
    yield numbers(step=STEP)


@claim("ZCPO-F6", over=_groups)
def the_kl_opposes_a_push_away(g: AnswerGroups) -> Iterator[Found]:
    """The two steps of a token are opposed exactly where advantage and log-ratio have one sign."""
    away = g.advantage[..., None] * g.log_ratio
    active = (away != 0) & (g.gates(g.advantage) > 0)
    reward, kl = -g.slopes(g.advantage), -g.k3
    yield printed(float((((reward * kl) < 0) != (away > 0))[active].double().mean()))
    conflict = active & (away > 0)
    weakened = reward[conflict].abs() - (reward + 1e-3 * kl)[conflict].abs()
    yield less(0.0, float(weakened.min()), by=1e-12)
