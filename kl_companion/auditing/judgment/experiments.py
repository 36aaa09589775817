"""A loss on small batches, of which single inputs are given the values of other batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.reading.arguments import NO_OTHERS, Others
from kl_companion.auditing.reading.subject import Moved, Reading
from kl_companion.rollout import Rollout
from kl_companion.tabular.populations import Population, population_rollout, population_tree

Key = tuple[str, str]  # the name and the role of an input
_ANSWERS = 64
_SAME = 1e-11  # of a number, relatively: rounding
_MASKS = ("completion_mask", "lengths", "num_tokens")
_IDS = ("tokens", "input_ids", "labels")
_NOT_MOVED = re.compile(
    "sample_mask|prompt_ids|prompt_index|(?:group|batch)_size|max_length|rollout|batch|.*topk_(?:mask|ids)"
)


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

    def expected(self, place: Population, others: Mapping[Key, Population], copies: int = 1) -> torch.Tensor:
        """Compute the gradient on a whole population with respect to its logits, [rows, vocab]."""
        moved = {n: population_rollout(p, copies) for n, p in others.items()}
        found = self.run(population_rollout(place, copies), moved)
        rows = place.problem.rows[place.which.repeat(copies)]
        total = torch.zeros_like(place.problem.logits)
        return total.index_add_(0, rows.flatten(), found.gradient.flatten(0, 1))


def kind_of(role: str) -> str:
    """Return what moves an input: "reference", "behavior", "rewards", "mask", "ids", "policy", or ""."""
    if _NOT_MOVED.fullmatch(role):
        return ""
    if role.startswith("ref_"):
        return "reference"
    if role.startswith("behavior_"):
        return "behavior"
    return (
        "rewards" if role == "rewards" else "mask" if role in _MASKS else "ids" if role in _IDS else "policy"
    )


@cache
def place(head: int, copies: int, *, off_policy: bool) -> Population:
    """Return copies of 64 answers of one or two tokens in proportion to their probability, in a mixed order.

    A loss that compares neighbors, as ``rewards.view(-1, 4)`` does, finds different ones.
    """
    tree = population_tree(max(3, head + 2), 2, parts=8, seed=3, eos=True, off_policy=off_policy)
    which = tree.which.repeat(copies)
    order = torch.randperm(len(which), generator=torch.Generator().manual_seed(0))
    return Population(tree.problem, which[order])


def noise(like: torch.Tensor, seed: int = 5, size: float = 1.0) -> torch.Tensor:
    """Return normal random numbers of the shape of a tensor."""
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(like.shape, generator=generator, dtype=torch.float64)


def moved_place(of: Population, kind: str, step: torch.Tensor) -> Population:
    """Return a population whose reference, or whose rewards, are moved by a step."""
    p = of.problem
    if kind == "rewards":
        return Population(p._replace(rewards=p.rewards + step), of.which)
    return Population(p._replace(ref_logits=p.ref_logits + step), of.which)


def moved(rollout: Rollout, kind: str) -> Rollout:
    """Return a rollout with one kind of input moved, row by row, a little and a lot."""
    if kind == "mask":
        return changed(rollout, completion_mask=without_tokens(rollout.completion_mask))
    assert rollout.logits is not None
    if kind == "ids":
        return changed(rollout, tokens=(rollout.tokens + 1) % rollout.logits.shape[-1])
    name = {"reference": "ref_logits", "behavior": "behavior_logits", "policy": "logits"}.get(kind, kind)
    x = getattr(rollout, name).detach()
    sizes = torch.tensor([0.3, 1.0, 3.0]).repeat(len(x))[: len(x)].view(-1, *[1] * (x.ndim - 1))
    return changed(rollout, **{name: x + sizes * noise(x)})


def without_tokens(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask without one token of every answer that has several: the first and the last in turns."""
    mask = mask.clone()
    for i in (mask.sum(-1) > 1).nonzero().flatten().tolist():
        inside = mask[i].nonzero().flatten()
        mask[i, inside[-(i % 2)]] = 0
    return mask


def changed(rollout: Rollout, **tensors: Any) -> Rollout:
    """Return a rollout of the same policy with other tensors."""
    names = ("tokens", "completion_mask", "logits", "ref_logits", "behavior_logits", "rewards")
    return Rollout.from_logits(**{n: getattr(rollout, n) for n in names} | tensors, validate=False)
