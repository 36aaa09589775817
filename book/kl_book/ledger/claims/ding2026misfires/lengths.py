"""Section 3, F4 and F5: the length of answers and the number of tokens (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import (
    contributions,
    k3_slopes,
    mean_drift,
    surrogate_slopes,
)
from kl_book.ledger.claims.ground.errors import apart, differs, less, relative, worst
from kl_book.ledger.claims.ground.sequences import token_kls, token_weighted
from kl_book.ledger.claims.ground.sums import exact, field, mean, reverse_kl, terms
from kl_book.ledger.claims.ground.worlds import trees, two_policies
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem, prefix_tree

BETA = 0.04
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
    return exact(reverse_kl, two_policies(policy, reference))[0]


def _lengths(problem: Problem) -> torch.Tensor:
    return problem.completion_mask.sum(-1)


def length_gradient(problem: Problem) -> torch.Tensor:
    """Gradient of the expected number of tokens."""
    return exact(lambda p, q: p.exp() @ _lengths(problem), problem)[1]


def _ending() -> tuple[Problem, ...]:
    """Trees whose answers differ in length."""
    return tuple(p for p in trees() if len(_lengths(p).unique()) > 1)


@claim("ZCPO-F4-penalty")
def longer_answers_have_larger_sums() -> Iterator[Found]:
    """The KL of a position is never negative; where all are alike, the sum is their number times one."""
    problem, errors = even_tree(), []
    each = kl_of_a_token(problem)
    total = token_kls(problem, problem.logits).sum(-1)
    errors += [apart(total, each * _lengths(problem)), less(0.0, each)]
    for other in trees():
        errors.append(max(0.0, -float(token_kls(other, other.logits).min())))
    yield from each_form(worst(errors))


@claim("ZCPO-4-length")
def the_mean_does_not_grow_with_the_length() -> Iterator[Found]:
    """Where all positions have one KL, its mean over the tokens is that number for every length."""
    problem = even_tree()
    yield from each_form(apart(mean_drift(problem), kl_of_a_token(problem)))


@claim("ZCPO-F4-stop")
def a_kl_loss_moves_the_length_at_the_stop() -> Iterator[Found]:
    """A step against the KL of the tokens that end an answer changes the expected length."""
    errors, moved = [], []
    for problem in _ending():
        ends = (problem.sequences == 0).double() * problem.completion_mask
        step = -mean(terms(problem).p, token_weighted(problem, k3_slopes(problem) * ends))
        by_score = field(_lengths(problem), problem)
        errors.append(apart(by_score, length_gradient(problem)))
        moved.append(float((step * by_score).sum()))
        errors.append(differs(moved[-1], 0.0))
    yield from each_form(worst(errors))


def _loss_gradient(problem: Problem, extra: float) -> torch.Tensor:
    """Mean gradient of sum_t (k3_t + extra), differentiated token by token, [rows, vocab]."""
    t = terms(problem)
    leaf = t.logp.clone().requires_grad_()
    cost = (get_estimator("k3").fn(leaf, t.ref_logp) + extra) * problem.completion_mask
    (slopes,) = torch.autograd.grad(cost.sum(), leaf)
    return mean(t.p, token_weighted(problem, slopes))


def _reward_gradient(problem: Problem, extra: float) -> torch.Tensor:
    """E[score times sum_t (k3_t + extra)]: the same sum in the reward, [rows, vocab]."""
    t = terms(problem)
    cost = (get_estimator("k3").fn(t.logp, t.ref_logp) + extra) * problem.completion_mask
    return field(cost.sum(-1), problem)


@claim("ZCPO-F4")
def a_differentiated_kl_does_not_see_its_growth() -> Iterator[Found]:
    """More nats per token leave the gradient of the loss as it is; in the reward they shorten answers."""
    printed, corrected, sizes = [], [], []
    for problem in _ending():
        wanted = COST * length_gradient(problem)
        in_the_loss = _loss_gradient(problem, COST) - _loss_gradient(problem, 0.0)
        printed.append(relative(in_the_loss, wanted))
        in_the_reward = _reward_gradient(problem, COST) - _reward_gradient(problem, 0.0)
        corrected.append(apart(in_the_reward, wanted))
        sizes.append(float(_lengths(problem).max()))
    yield from each_form(worst(printed), worst(corrected), sizes_0=sizes[0], COST=COST)


@claim("ZCPO-F5")
def cancelled_rewards_leave_the_kl_a_larger_share() -> Iterator[Found]:
    """Two answers that differ in their last token: with more shared tokens the KL's share grows."""
    problem = prefix_tree(2, 4, seed=2)
    index = torch.tensor([[0, 1]])
    advantage = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    reward = contributions(problem, index, surrogate_slopes(problem, index, advantage))
    kl = contributions(problem, index, BETA * k3_slopes(problem)[index])
    by_hand = BETA * (1 - (-terms(problem).log_ratio).exp())
    errors = [apart(kl, contributions(problem, index, by_hand[index]))]
    shares, rewards = [], []
    for tokens in range(1, 5):
        branches = (x[:, :, -tokens:].sum((0, 1, 2)).norm() for x in (reward, kl))
        by_reward, by_kl = (float(x) for x in branches)
        shares.append(by_kl / (by_kl + by_reward))
        rewards.append(by_reward)
    errors += [less(a, b) for a, b in pairwise(shares)]
    errors.append(max(rewards) - min(rewards))
    yield from each_form(worst(errors), shares_0=shares[0], shares_1=shares[-1], BETA=BETA)
