"""Appendix J.3: K5 as a policy gradient, which is RWR and MPO (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, numbers, rises, same
from kl_book.ledger.claims.ground import rollouts as sampled
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.estimates import k5
from kl_book.ledger.claims.ground.world import Enumeration, each

InGroups = tuple[Enumeration, sampled.Group]


def softmax(g: sampled.Group) -> torch.Tensor:
    """Of R - l over the group, [groups, N]."""
    return (g.reward - g.log_ratio).softmax(-1)


def with_exact_z(w: Enumeration, g: sampled.Group) -> torch.Tensor:
    """`softmax` with the estimate of Z replaced by Z itself, [groups, N]."""
    return softmax(g) * (g.log_z - w.log_z).exp()


def biases(w: Enumeration) -> list[float]:
    """Of -sum s softmax as an estimate of the gradient of KL(pi*||pi), relative, for N = 2, 3, 4."""
    groups = (sampled.group(w.problem, size) for size in (*sampled.SIZES, 4))
    return [relative(g.sum(-softmax(g)), w.d_target_forward) for g in groups]


@claim("EMA-J3", over=each(sampled.rollouts))
def gradient_of_k5(w: Enumeration) -> Iterator[Found]:
    """In expectation -w s, the gradient of KL(pi*||pi); per sample it is (1 - w) s."""
    c, ratio = w.at_target(k5), w.log_w.exp()
    yield same(w.Es(c), w.Es(-ratio))
    yield same(c, 1 - ratio)
    yield same(w.Es(-ratio), w.d_target_forward)


@claim("EMA-J3+softmax", over=sampled.in_groups(sampled.rollouts, sizes=(*sampled.SIZES, 4)))
def softmax_over_the_group(x: InGroups) -> Iterator[Found]:
    """-(1/N) sum s_i w_i with the Z of eq (143) is -sum s_i softmax_i in every group; biased at finite N."""
    w, g = x
    yield same(softmax(g), (g.reward - g.log_ratio - g.log_z).exp() / g.size)
    yield same(g.sum(-with_exact_z(w, g)), w.d_target_forward)
    yield rises(biases(w)[::-1])


@claim("EMA-J3-mean", over=sampled.in_groups(sampled.rollouts))
def batched_form(x: InGroups) -> Iterator[Found]:
    """The line above has -sum; the batched form has the mean, and no minus."""
    w, g = x
    line = g.sum(-(g.reward - g.log_ratio - g.log_z).exp()) / g.size
    yield same(g.sum(softmax(g)) / g.size, line, by=relative)
    yield same(g.sum(-softmax(g)), line, "corrected")
    yield same(g.sum(-with_exact_z(w, g)), w.d_target_forward, "corrected")


@claim("EMA-J3-mean+rwr")
def regression_on_rewards() -> Iterator[Found]:
    """A judgement; computed is where the weights are those of the two methods."""
    w = Enumeration(sampled.two_answers())
    at_reference = w.replace(logits=w.problem.ref_logits)
    yield numbers(
        elsewhere=(w.R - w.l).softmax(-1), at_reference=(at_reference.R - at_reference.l).softmax(-1)
    )


@claim("EMA-eq149", over=sampled.in_groups(sampled.rollouts))
def k5_as_rwr(x: InGroups) -> Iterator[Found]:
    """-s softmax of one rollout is 1/N of the gradient; the sum over the group is the mean K5 gradient."""
    w, g = x
    by_k5 = g.sum(sampled.logp_slope(k5, g.log_ratio, g.reward - g.log_z)) / g.size
    yield same(g.sum(-softmax(g)) / g.size, by_k5, by=relative)
    yield same(g.sum(-softmax(g)), by_k5, "inside")
    yield same(w.Es(w.at_target(k5)), w.d_target_forward, "inside")


@words("EMA-J3+softmax", "EMA-J3-mean", "EMA-eq149")
def two_answers_and_four() -> dict[str, Any]:
    """Entries of the first logit with a pair of two answers; biases with four answers."""
    pair = sampled.group(sampled.two_answers(), 2)
    total = sampled.first_logit(pair.sum(-softmax(pair)))
    return {
        "biases": biases(Enumeration(sampled.rollouts()[3])),
        "sum": total,
        "mean": total / 2,
        "minus_mean": -total / 2,
        "group": sampled.GROUP_SIZE,
    }
