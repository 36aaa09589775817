"""Top-k estimators: the exact part over a set of tokens, the sampled rest, and averages over the sample.

One next token, all tokens summed over. The algorithms are written out here, so that they are compared as they
are printed and not through the estimators of the package.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground.estimates import k4, k5, score_ratio
from kl_book.ledger.claims.ground.sums import exact, forward_kl, mean, reverse_kl, terms
from kl_companion.tabular import Problem

Entry = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class WrittenSplit(NamedTuple):
    """The exact part over a set, which every entry of it adds to, and the sampled rest outside."""

    head: Entry
    tail: Entry


REVERSE = WrittenSplit(lambda p, q: p.exp() * (p - q), k4)


FORWARD = WrittenSplit(lambda p, q: q.exp() * (q - p), k5)


REPAIRED = {
    "reverse": (
        WrittenSplit(REVERSE.head, lambda p, q: score_ratio(p) * (p - q)),
        WrittenSplit(lambda p, q: p.exp() * (p - q).detach(), k4),
        WrittenSplit(
            lambda p, q: p.exp() * (p - q) - p.exp() + q.exp(),
            lambda p, q: score_ratio(p) * (p - q + (q - p).exp() - 1),
        ),
    ),
    "forward": (
        WrittenSplit(FORWARD.head, lambda p, q: (q - p).exp().detach() * (q - p)),
        WrittenSplit(
            lambda p, q: q.exp() * (q - p) + p.exp() - q.exp(),
            lambda p, q: (q - p).exp().detach() * (q - p + (p - q).exp() - 1),
        ),
    ),
}


PUBLISHED = {"reverse": (REVERSE, reverse_kl, 1.0), "forward": (FORWARD, forward_kl, -1.0)}


def subsets(count: int) -> Iterator[torch.Tensor]:
    """Every set of tokens, as a mask [count]."""
    return (torch.tensor(x) for x in itertools.product((False, True), repeat=count))


def heads(scores: torch.Tensor) -> Iterator[torch.Tensor]:
    """The likeliest 0, 1, ... tokens, as masks."""
    rank = scores.argsort(descending=True).argsort()
    return (rank < k for k in range(len(rank) + 1))


def of_the_policy(problem: Problem) -> Iterator[torch.Tensor]:
    """The k likeliest tokens of the policy, every k."""
    return heads(terms(problem).logp.sum(-1))


def of_the_reference(problem: Problem) -> Iterator[torch.Tensor]:
    """The k likeliest tokens of the reference, every k."""
    return heads(terms(problem).ref_logp.sum(-1))


def of_the_sampler(problem: Problem) -> Iterator[torch.Tensor]:
    """The k likeliest tokens of the sampler, every k."""
    return heads(terms(problem).p)


def every_set(problem: Problem) -> Iterator[torch.Tensor]:
    """Every set of tokens."""
    return subsets(len(terms(problem).p))


def mean_of_top_k(
    split: WrittenSplit, chosen: torch.Tensor, problem: Problem, weight: torch.Tensor | None = None
) -> tuple[float, torch.Tensor]:
    """Mean value and mean gradient over the sampled token; ``weight`` multiplies the tail."""
    t = terms(problem)
    leaf, q = t.logp.sum(-1).clone().requires_grad_(), t.ref_logp.sum(-1)
    chance = t.p if weight is None else t.p * weight
    x = torch.where(chosen, split.head(leaf, q), chance * split.tail(leaf, q)).sum()
    (c,) = torch.autograd.grad(x, leaf)
    return x.item(), mean(c, t.score)


def mass_gradient(chosen: torch.Tensor, problem: Problem) -> torch.Tensor:
    """Gradient of the policy's probability of the set."""
    t = terms(problem)
    return mean(t.logp.sum(-1).exp() * chosen, t.score)


def bias_of_top_k(
    split: WrittenSplit,
    truth: Callable[..., torch.Tensor] | tuple[float, torch.Tensor],
    chosen: torch.Tensor,
    problem: Problem,
    weight: torch.Tensor | None = None,
) -> tuple[float, torch.Tensor]:
    """(bias of the value, bias of the gradient); ``truth`` is a divergence, or what `exact` says of one."""
    right, slope = exact(truth, problem) if callable(truth) else truth
    value, gradient = mean_of_top_k(split, chosen, problem, weight)
    return value - right, gradient - slope
