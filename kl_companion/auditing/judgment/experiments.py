"""A loss on small batches, of which single inputs are given the values of other batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch

from kl_companion.auditing.reading.arguments import NO_OTHERS, Others
from kl_companion.auditing.reading.subject import Moved, Reading
from kl_companion.rollout import Rollout
from kl_companion.tabular.populations import Population, population_rollout, population_tree

Key = tuple[str, str]  # the name and the role of an input
_ANSWERS = 64
_SAME = 1e-11  # of a number, relatively: rounding
_NOT_MOVED = (
    "values|sample_mask|prompt_ids|prompt_index|(group|batch)_size|max_length|rollout|batch|.*topk_(mask|ids)"
    "|boundaries|positions|segments|states|rows"
)
_KINDS = {
    "": _NOT_MOVED,
    "reference": "ref_.*",
    "behavior": "behavior_.*",
    "rewards": "rewards",
    "mask": "completion_mask|lengths|num_tokens",
    "ids": "tokens|input_ids|labels",
}
# the field of a world that moves the inputs of a kind
_FIELDS = {"reference": "ref_logits", "policy": "logits", "rewards": "rewards"}


class LossAndGradient(NamedTuple):
    """A loss on one batch: its value, and its gradient with respect to the policy's logits of every row."""

    value: float
    gradient: torch.Tensor

    def same_value(self, other: LossAndGradient) -> bool:
        """Return whether the values differ by rounding only."""
        return abs(self.value - other.value) <= _SAME * (1 + abs(self.value))

    def same_gradient(self, other: LossAndGradient) -> bool:
        """Return whether the gradients differ by rounding only."""
        size = self.gradient.norm() + other.gradient.norm()
        return bool((self.gradient - other.gradient).norm() <= _SAME * size)


class Lab(NamedTuple):
    """A loss whose inputs are moved.

    Attributes:
        loss: The loss.
        reading: How its inputs were read.
        head: Of how many likeliest tokens it is; 0 of none.
        group: Answers in a group, where it runs on whole groups only; else 1.
    """

    loss: Moved
    reading: Reading
    head: int = 0
    group: int = 1

    def place(self, *, off_policy: bool = False) -> Population:
        """Return the answers on which it is tried, see `place`."""
        return place(self.head, 1 if _ANSWERS % self.group == 0 else self.group, off_policy=off_policy)

    def of_kind(self, *kinds: str) -> list[Key]:
        """Return the inputs of these kinds, see `kind_of`."""
        return [(r.name, r.role) for r in self.reading.reads if kind_of(r.role) in kinds]

    def run(self, rollout: Rollout, others: Others = NO_OTHERS) -> LossAndGradient:
        """Evaluate the loss with some inputs of other rollouts.

        Raises:
            ValueError: the loss does not run, or is NaN.
        """
        assert rollout.logits is not None
        loss = self.loss(rollout, others)
        gradient = torch.zeros_like(rollout.logits)
        if loss.requires_grad:
            (gradient,) = torch.autograd.grad(loss, rollout.logits, retain_graph=True, materialize_grads=True)
        if not bool(gradient.isfinite().all()):
            raise ValueError("the gradient is not finite")
        return LossAndGradient(loss.item(), gradient)

    def on(self, at: Population, others: Mapping[Key, Population], copies: int = 1) -> LossAndGradient:
        """Evaluate the loss on copies of a population, with some inputs of others; errors as `run`."""
        moved = {key: population_rollout(other, copies) for key, other in others.items()}
        return self.run(population_rollout(at, copies), moved)

    def expected(self, at: Population, others: Mapping[Key, Population], copies: int = 1) -> torch.Tensor:
        """Return the gradient of `on` with respect to the logits of the population, [rows, vocab]."""
        rows = at.problem.rows[at.which.repeat(copies)].flatten()
        each = self.on(at, others, copies).gradient.flatten(0, 1)
        return torch.zeros_like(at.problem.logits).index_add_(0, rows, each)


def kind_of(role: str) -> str:
    """Return what moves an input: "reference", "behavior", "rewards", "mask", "ids", "policy", or ""."""
    return next((kind for kind, roles in _KINDS.items() if re.fullmatch(roles, role)), "policy")


@cache
def place(head: int, copies: int, *, off_policy: bool) -> Population:
    """Return copies of 64 answers of one or two tokens in proportion to their probability, in a mixed order.

    A loss that compares neighbors, as ``rewards.view(-1, 4)`` does, finds different ones.
    """
    tree = population_tree(max(3, head + 2), 2, parts=8, seed=3, eos=True, off_policy=off_policy)
    which = tree.which.repeat(copies)
    order = torch.randperm(len(which), generator=torch.Generator().manual_seed(0))
    return Population(tree.problem, which[order])


def noise(like: torch.Tensor) -> torch.Tensor:
    """Return normal random numbers of the shape of a tensor."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def moved(at: Population, kind: str) -> Population:
    """Return a population with all of one kind moved, a little in some rows and a lot in others."""
    p = at.problem
    if kind == "mask":
        return Population(p._replace(completion_mask=_without_tokens(p.completion_mask)), at.which)
    if kind == "ids":
        return Population(p._replace(sequences=(p.sequences + 1) % p.logits.shape[-1]), at.which)
    field = _FIELDS.get(kind, "behavior_logits")
    x = p.sampled_from if kind == "behavior" else getattr(p, field)
    sizes = torch.tensor([0.3, 1.0, 3.0]).repeat(len(x))[: len(x)].view(-1, *[1] * (x.ndim - 1))
    return Population(p._replace(**{field: x + sizes * noise(x)}), at.which)


def _without_tokens(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask without one token of every answer that has several: the first and the last in turns."""
    mask = mask.clone()
    for i in (mask.sum(-1) > 1).nonzero().flatten().tolist():
        inside = mask[i].nonzero().flatten()
        mask[i, inside[-(i % 2)]] = 0
    return mask
