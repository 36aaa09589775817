"""Section 3, F4 and F5: the length of answers and the number of tokens (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, less, numbers, printed, rises, same
from kl_book.ledger.claims.ground.calibration import AnswerGroups, k3_slopes, mean_drift
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.world import World, each, two
from kl_book.ledger.claims.ground.worlds import trees
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


@claim("ZCPO-F4-penalty")
def longer_answers_have_larger_sums() -> Iterator[Found]:
    """The KL of a position is never negative; where all are alike, the sum is their number times one."""
    problem = even_tree()
    of_a_token = kl_of_a_token(problem)
    yield same(token_kls(problem, problem.logits).sum(-1), of_a_token * lengths(problem))
    yield less(0.0, of_a_token)
    for other in trees():
        yield at_most(0.0, token_kls(other, other.logits))


@claim("ZCPO-4-length", over=lambda: [even_tree()])
def the_mean_does_not_grow_with_the_length(problem: Problem) -> Iterator[Found]:
    """Where all positions have one KL, its mean over the tokens is that number for every length."""
    yield same(mean_drift(problem), kl_of_a_token(problem))


@claim("ZCPO-F4-stop", over=each(_ending))
def a_kl_loss_moves_the_length_at_the_stop(w: World) -> Iterator[Found]:
    """A step against the KL of the tokens that end an answer changes the expected length."""
    ends = (w.problem.sequences == 0).double() * w.problem.completion_mask
    step = -w.E(w.tokens(k3_slopes(w.problem) * ends))
    by_score = w.Es(lengths(w.problem))
    yield same(by_score, length_gradient(w.problem))
    yield differs((step * by_score).sum(), 0.0)


def _cost(w: World, logp: torch.Tensor, extra: float) -> torch.Tensor:
    """k3 plus a constant of every token, [count, length]."""
    return (get_estimator("k3").fn(logp, w.t.ref_logp) + extra) * w.problem.completion_mask


def _in_the_loss(w: World, extra: float) -> torch.Tensor:
    """Mean gradient of sum_t (k3_t + extra), differentiated token by token, [rows, vocab]."""
    leaf = w.t.logp.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(_cost(w, leaf, extra).sum(), leaf)
    return w.E(w.tokens(slopes))


def _in_the_reward(w: World, extra: float) -> torch.Tensor:
    """E[score times sum_t (k3_t + extra)]: the same sum in the reward, [rows, vocab]."""
    return w.Es(_cost(w, w.t.logp, extra).sum(-1))


@claim("ZCPO-F4")
def a_differentiated_kl_does_not_see_its_growth() -> Iterator[Found]:
    """More nats per token leave the gradient of the loss as it is; in the reward they shorten answers."""
    for w in each(_ending)():
        wanted = COST * length_gradient(w.problem)
        yield printed(relative(_in_the_loss(w, COST) - _in_the_loss(w, 0.0), wanted))
        yield same(_in_the_reward(w, COST) - _in_the_reward(w, 0.0), wanted, "corrected")
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
