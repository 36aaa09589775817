"""Section 3, lemma and F1 to F6: what a KL loss does where the reward does nothing (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import (
    Found,
    at_most,
    differs,
    less,
    numbers,
    observed,
    printed,
    rises,
    same,
)
from kl_book.ledger.claims.ground.calibration import AnswerGroups, every_group, k3_slopes, mean_drift, stale
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.groups import groups
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import bandits, trees, worlds
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem, prefix_tree

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


@claim("ZCPO-F2", over=lambda: (p._replace(behavior_logits=None) for p in stale() if p.rows.shape[1] > 1))
def reward_gradients_cancel_at_a_shared_token(problem: Problem) -> Iterator[Found]:
    """At the first token that a group shares they add up to 0; the KL's add up to n times that of one."""
    g = every_group(problem, SIZE)  # at the sampler itself: every gate is open
    g = g.where(g.one_start & ~(g.answers == g.answers[:, :1]).all(-1) & (g.advantage.abs().sum(-1) > 0))
    slopes, kl = g.slopes(g.advantage)[..., 0], BETA * g.k3[..., 0]
    yield same(slopes.sum(-1), 0.0)
    yield same(kl.sum(-1), SIZE * BETA * _by_hand(g)[:, 0, 0])
    yield less(0.0, float(kl.sum(-1).abs().min()))
    yield less(0.0, float(slopes.abs().amax(-1).min()))


@claim("ZCPO-F3", over=_groups)
def groups_with_equal_rewards_follow_the_kl(g: AnswerGroups) -> Iterator[Found]:
    """Every advantage is 0, and the gradient is the KL's."""
    yield observed(groups(g.problem, SIZE)[0][g.equal].sum())
    g = g.where(g.equal)
    slopes = g.slopes(g.advantage)
    yield same(g.advantage, 0.0)
    yield same(slopes, 0.0)
    yield same(slopes + BETA * g.k3, BETA * _by_hand(g))
    yield differs(g.contributions(slopes + BETA * g.k3).sum((1, 2)), 0.0)
    yield numbers(size=SIZE)


@claim("ZCPO-F6-k3grad", over=worlds)
def derivative_of_k3(problem: Problem) -> Iterator[Found]:
    """(1 - exp(-Delta)) times the score, for every token."""
    g = every_group(problem, 1)
    yield same(g.contributions(g.k3), g.contributions(_by_hand(g)))


STEP = 1e-3


@claim("ZCPO-F6-pull", over=each(bandits))
def a_step_against_k3_goes_to_the_reference(w: Enumeration) -> Iterator[Found]:
    """A step of one token's own loss brings its log-prob nearer to the reference, and not beyond."""
    logits = w.problem.logits[0] - STEP * k3_slopes(w.problem) * w.t.scores[:, 0, 0]
    before, after = w.t.log_ratio[:, 0], logits.log_softmax(-1).diagonal() - w.t.ref_logp[:, 0]
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


COST = 0.5  # nats that every token costs in addition


def even_tree() -> Problem:
    """A tree with end-of-sequence in which every prefix has the same next-token distribution."""
    problem = prefix_tree(3, 3, seed=4, eos=True, scale=2.0)
    return problem._replace(
        logits=problem.logits[:1].expand_as(problem.logits),
        ref_logits=problem.ref_logits[:1].expand_as(problem.ref_logits),
    )


def kl_of_a_token(problem: Problem) -> float:
    """KL of the next token after the empty prefix."""
    policy, reference = (x[0].softmax(-1).tolist() for x in (problem.logits, problem.ref_logits))
    return two(policy, reference).kl


def lengths(problem: Problem) -> torch.Tensor:
    """Number of tokens of every answer, [count]."""
    return problem.completion_mask.sum(-1)


def length_gradient(problem: Problem) -> torch.Tensor:
    """Gradient of the expected number of tokens."""
    return exact(lambda p, q: p.exp() @ lengths(problem), problem)[1]


def _ending() -> list[Problem]:
    """Trees whose answers differ in length."""
    return [p for p in trees() if len(lengths(p).unique()) > 1]


@claim("ZCPO-F4-penalty", over=lambda: (even_tree(), *trees()))
def longer_answers_have_larger_sums(problem: Problem) -> Iterator[Found]:
    """The KL of a position is never negative; where all are alike, the sum is their number times one."""
    along = token_kls(problem, problem.logits)
    yield at_most(0.0, along)
    if (problem.logits == problem.logits[:1]).all():
        yield same(along.sum(-1), kl_of_a_token(problem) * lengths(problem))
        yield less(0.0, kl_of_a_token(problem))


@claim("ZCPO-4-length", over=lambda: [even_tree()])
def the_mean_does_not_grow_with_the_length(problem: Problem) -> Iterator[Found]:
    """Where all positions have one KL, its mean over the tokens is that number for every length."""
    yield same(mean_drift(problem), kl_of_a_token(problem))


@claim("ZCPO-F4-stop", over=each(_ending))
def a_kl_loss_moves_the_length_at_the_stop(w: Enumeration) -> Iterator[Found]:
    """A step against the KL of the tokens that end an answer changes the expected length."""
    ends = (w.problem.sequences == 0).double() * w.problem.completion_mask
    step = -w.E(w.tokens(k3_slopes(w.problem) * ends))
    by_score = w.Es(lengths(w.problem))
    yield same(by_score, length_gradient(w.problem))
    yield differs((step * by_score).sum(), 0.0)


def _gradients(w: Enumeration, extra: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Expected gradient of sum_t (k3_t + extra), differentiated in the loss or put into the reward.

    Both [rows, vocab].
    """
    leaf = w.t.logp.clone().requires_grad_()
    cost = (get_estimator("k3").fn(leaf, w.t.ref_logp) + extra) * w.problem.completion_mask
    (slopes,) = torch.autograd.grad(cost.sum(), leaf)
    return w.E(w.tokens(slopes)), w.Es(cost.detach().sum(-1))


@claim("ZCPO-F4", over=each(_ending))
def a_differentiated_kl_does_not_see_its_growth(w: Enumeration) -> Iterator[Found]:
    """More nats per token leave the gradient of the loss as it is; in the reward they shorten answers."""
    target = COST * length_gradient(w.problem)
    in_loss, in_reward = (a - b for a, b in zip(_gradients(w, COST), _gradients(w, 0.0), strict=True))
    yield printed(relative(in_loss, target))
    yield same(in_reward, target, "corrected")
    yield numbers(tokens=float(lengths(_ending()[0]).max()), cost=COST)


@claim("ZCPO-F5")
def cancelled_rewards_leave_the_kl_a_larger_share() -> Iterator[Found]:
    """Two answers that differ in their last token: with more shared tokens the KL's share grows."""
    pair = AnswerGroups(prefix_tree(2, 4, seed=2), torch.tensor([[0, 1]]))
    advantage = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    reward, kl = pair.contributions(pair.slopes(advantage)), pair.contributions(BETA * pair.k3)
    yield same(kl, pair.contributions(BETA * (1 - (-pair.log_ratio).exp())))
    by_reward, by_kl = (
        [float(x[:, :, -tokens:].sum((0, 1, 2)).norm()) for tokens in range(1, 5)] for x in (reward, kl)
    )
    shares = [of_kl / (of_kl + of_reward) for of_reward, of_kl in zip(by_reward, by_kl, strict=True)]
    yield rises(shares)
    yield same(max(by_reward), min(by_reward))
    yield numbers(alone=shares[0], with_shared=shares[-1], beta=BETA)
