"""A tiny mixture of experts on a tree of two tokens: a gate, two experts, and an engine that rounds.

Every prefix has its own gate and its own outputs of both experts. A token goes to the expert with the larger
gate value; the expert's output is scaled by the gate's probability, so that the gate has a gradient as well.
The inference engine has the same parameters, rounded to a coarse grid.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground import sums, surrogates
from kl_companion.tabular import Problem, prefix_tree

GRID = 0.5  # of the numbers in the inference engine
STEP = 1.5  # length of an update, in parameters
COUNT = 8


class Mixture(NamedTuple):
    """Parameters: gate [rows, 2], outputs of the experts [2, rows, vocab], what both share [rows, vocab]."""

    gate: torch.Tensor
    experts: torch.Tensor
    shared: torch.Tensor


def made(seed: int) -> Mixture:
    """Gaussian parameters; the gate is narrow, so that rounding and updates change some of its choices."""
    generator = torch.Generator().manual_seed(seed)
    rows, vocab = _tree().logits.shape

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return Mixture(0.25 * normal(rows, 2), normal(2, rows, vocab), normal(rows, vocab))


@cache
def mixtures() -> tuple[Mixture, ...]:
    """A few of them."""
    return tuple(made(seed) for seed in range(COUNT))


@cache
def _tree() -> Problem:
    """Three tokens, two positions: four prefixes."""
    return prefix_tree(3, 2, seed=3)


def routed(mixture: Mixture) -> torch.Tensor:
    """The expert that the gate chooses after each prefix, [rows]."""
    return mixture.gate.argmax(-1)


def logits(mixture: Mixture, experts: torch.Tensor) -> torch.Tensor:
    """Next-token logits with these experts [rows], whatever the gate would choose, [rows, vocab]."""
    every = torch.arange(len(experts))
    weight = mixture.gate.softmax(-1)[every, experts]
    return mixture.shared + weight[:, None] * mixture.experts[experts, every]


def logps(mixture: Mixture, experts: torch.Tensor) -> torch.Tensor:
    """Next-token log-probs with these experts, [rows, vocab]."""
    return logits(mixture, experts).log_softmax(-1)


def rounded(mixture: Mixture) -> Mixture:
    """The same parameters as the inference engine holds them."""
    return Mixture(*(torch.round(x / GRID) * GRID for x in mixture))


def divergence_of_tokens(first: torch.Tensor, second: torch.Tensor) -> float:
    """KL of the next token from log-probs [rows, vocab], averaged over the prefixes."""
    return float(sums.reverse_kl(first, second).mean())


def world(target: torch.Tensor, older: torch.Tensor, sampler: torch.Tensor) -> surrogates.Engines:
    """The tree with these logits [rows, vocab] of the target, of the older policy and of the sampler."""
    return surrogates.Engines(_tree()._replace(logits=target, ref_logits=older, behavior_logits=sampler))


def sampler_logits(mixture: Mixture) -> torch.Tensor:
    """Next-token logits of the inference engine with its own experts, [rows, vocab]."""
    coarse = rounded(mixture)
    return logits(coarse, routed(coarse))


def token_gradient(mixture: Mixture, experts: torch.Tensor, sampler: torch.Tensor) -> Mixture:
    """Gradient of the token objective in all parameters, with the experts held fixed."""
    leaves = Mixture(*(x.detach().clone().requires_grad_() for x in mixture))
    target = logits(leaves, experts)
    value = surrogates.of_tokens(world(target.detach(), target.detach(), sampler), target)
    return Mixture(*torch.autograd.grad(value, leaves))


@cache
def updated(number: int) -> Mixture:
    """One of `mixtures` after one update along the token gradient with its own experts."""
    mixture = mixtures()[number]
    gradient = token_gradient(mixture, routed(mixture), sampler_logits(mixture))
    size = torch.cat([x.flatten() for x in gradient]).norm()
    return Mixture(*(x + STEP * g / size for x, g in zip(mixture, gradient, strict=True)))
