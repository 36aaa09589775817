"""Batches in exact proportion to the probabilities of a world: a loss in the limit of large batches.

Where every probability of the sampling policy is a multiple of 1/N, a batch of N rows holds each sequence as
often as it is expected. A mean over such a batch, its standard deviation, its number of tokens have their
population values, and one evaluation of a loss gives its expected gradient, however it couples the rows.
Terms in 1/N that remain, as of a leave-one-out mean, are removed by extrapolation over N, 2N, 4N ...
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from kl_companion.rollout import Rollout
from kl_companion.tabular.expectations import Loss, check_differentiable, checked_scalar
from kl_companion.tabular.worlds import Problem, prefix_tree

_DIGITS = 13  # of the limit: batches are doubled until the first term that is not removed is that small
_SAME = 1e-12


@dataclass(frozen=True, eq=False)
class Population:
    """A world and a batch of it.

    Attributes:
        problem: The world; the probabilities of its sampler are multiples of 1/parts.
        which: Which sequence every row of the batch is, [N] int64.
    """

    problem: Problem
    which: torch.Tensor

    @cached_property
    def answers(self) -> Rollout:
        """Every sequence once, checked; no loss sees it, so that none can change what the next one reads."""
        return self.problem.rollout(self.problem.logits)

    @property
    def tokens_per_answer(self) -> float:
        """E[T], the mean number of tokens of an answer."""
        return self.problem.completion_mask.sum(-1)[self.which].mean().item()

    @property
    def rewards_deviation(self) -> float:
        """Standard deviation of the rewards, that of the population."""
        return self.problem.rewards[self.which].std(correction=0).item()


class Limit(NamedTuple):
    """What a loss does on a batch of any size, in the limit.

    Attributes:
        value: Of the loss; of its part per answer where the loss is a sum over the batch.
        gradient: With respect to the policy's logits, [rows, vocab]; likewise.
        contributions: Sum of the absolute gradients of all rows before they are added up: what the gradient
            is small or large against.
        sums: Whether the loss is a sum over the batch: twice the batch, twice the gradient.
        settles: Whether there is a limit.
        exact: Whether one batch gives it, because no terms in 1/N are left.
    """

    value: float
    gradient: torch.Tensor
    contributions: float
    sums: bool
    settles: bool
    exact: bool = False


def population_tree(
    vocab: int = 3,
    length: int = 2,
    *,
    parts: int | tuple[int, ...] = 6,
    seed: int = 0,
    eos: bool = False,
    off_policy: bool = False,
    scale: float = 1.0,
    ranked: bool = False,
) -> Population:
    """A `prefix_tree` whose sampler has probabilities in multiples of 1/parts, and its batch.

    The batch has parts^length rows; where every place in an answer has its own parts, their product.

    All policies of a row are moved alike, so that their log-ratios are as `prefix_tree` says.

    Args:
        vocab: Tokens.
        length: Longest sequence.
        parts: Denominator of the sampler's probabilities, at least ``vocab``; a tuple has those of the first
            token, of the second, and so on.
        seed: Of the tree.
        eos: See `prefix_tree`.
        off_policy: See `prefix_tree`.
        scale: See `prefix_tree`.
        ranked: Whether no two tokens of a row are equally likely, so that it is certain which are likeliest.

    Raises:
        ValueError: fewer parts than tokens, or than 1 + 2 + ... + vocab of a ranked tree; other than one for
            every place; as `prefix_tree`.
    """
    least = vocab * (vocab + 1) // 2 if ranked else vocab
    places = (parts,) * length if isinstance(parts, int) else parts
    if len(places) != length or any(n < least for n in places):
        raise ValueError(f"parts is {parts}, expected {length} of at least {least} for {vocab} tokens")
    tree = prefix_tree(vocab, length, seed=seed, eos=eos, off_policy=off_policy, scale=scale)
    of_row = torch.zeros(len(tree.logits), 1, dtype=torch.float64)
    for place, n in enumerate(places):
        of_row[tree.rows[:, place][tree.completion_mask[:, place] > 0]] = n
    counts = _rounded(tree.sampled_from.softmax(-1), of_row, ranked)
    moved = (counts / of_row).log() - tree.sampled_from
    problem = tree._replace(
        logits=tree.logits + moved,
        ref_logits=tree.ref_logits + moved,
        behavior_logits=None if tree.behavior_logits is None else tree.behavior_logits + moved,
    )
    inside = problem.completion_mask.bool()
    often = (
        counts[problem.rows, problem.sequences]
        .where(inside, torch.tensor(places, dtype=torch.float64))
        .prod(-1)
    )
    return Population(problem, torch.arange(len(often)).repeat_interleave(often.round().long()))


def _rounded(probability: torch.Tensor, parts: torch.Tensor, ranked: bool) -> torch.Tensor:
    """Whole numbers near parts * probability, at least 1 each, that sum to parts [rows, 1] in every row."""
    least = torch.ones_like(probability)
    if ranked:  # 1 of the least likely, 2 of the next: what is added to them keeps their order
        least += probability.argsort(dim=-1, stable=True).argsort(dim=-1)
    spare = parts - least.sum(-1, keepdim=True)
    share = probability * spare
    floor = share.floor()
    missing = (spare - floor.sum(-1, keepdim=True)).round()
    rank = (share - floor).argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return least + floor + (rank < missing)


def population_rollout(population: Population, copies: int = 1) -> Rollout:
    """The batch itself, ``copies`` times, in tensors that a loss may change."""
    return population.answers.repeated(population.which.repeat(copies))


def batch_gradient(
    loss_fn: Loss, population: Population, copies: int = 1
) -> tuple[float, torch.Tensor, float]:
    """Value, gradient [rows, vocab] and sum of absolute contributions of a loss on one batch.

    Raises:
        ValueError: the loss is no scalar, is NaN, or has no gradient.
    """
    rollout = population_rollout(population, copies)
    loss = checked_scalar(loss_fn, rollout)
    check_differentiable(loss)
    assert rollout.logits is not None
    (each,) = torch.autograd.grad(loss, rollout.logits, allow_unused=True)
    total = torch.zeros_like(population.problem.logits)
    if each is None:
        return loss.item(), total, 0.0
    rows = population.problem.rows[population.which.repeat(copies)]
    total.index_add_(0, rows.flatten(), each.flatten(0, 1))
    return loss.item(), total, each.abs().sum().item()


def large_batches(
    loss_fn: Loss, population: Population, *, further: int = 0, like: Limit | None = None
) -> Limit:
    """Value and gradient of a loss in the limit of large batches, whose samples are held fixed.

    A loss that is a mean over rows needs two batches, of N and of 2N; one that has terms in 1/N six.

    Args:
        loss_fn: The loss.
        population: The world and its batch.
        further: How many times more to double the batch where there is no limit yet.
        like: Limit of the same loss on another world: if it is exact, one batch is enough here.

    Raises:
        ValueError: as `batch_gradient`.
    """
    rows = len(population.which)
    first = batch_gradient(loss_fn, population)
    per_answer = Limit(first[0] / rows, first[1] / rows, first[2] / rows, True, True, True)
    if like is not None and like.exact and like.contributions > 0:
        return per_answer if like.sums else Limit(*first, sums=False, settles=True, exact=True)
    second = batch_gradient(loss_fn, population, 2)
    size = max(first[2], second[2])
    if _close(first[1], second[1], size) and _near(first[0], second[0]):
        return Limit(*second, sums=False, settles=True, exact=True)
    if _close(2 * first[1], second[1], size) and size > 0:
        return per_answer
    found = [first, second]
    found += [batch_gradient(loss_fn, population, 2**k) for k in range(2, _doublings(rows))]
    while not (settles := _settles(found, size)) and further > 0:
        found.append(batch_gradient(loss_fn, population, 2 ** len(found)))
        further -= 1
    value, gradient = _limit(found)
    return Limit(value.item(), gradient, found[-1][2], sums=False, settles=settles)


def _limit(found: list[tuple[float, torch.Tensor, float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and gradient at 1/N = 0."""
    value, gradient = (
        _extrapolated([torch.as_tensor(f[i], dtype=torch.float64) for f in found]) for i in (0, 1)
    )
    return value, gradient


def _settles(found: list[tuple[float, torch.Tensor, float]], size: float) -> bool:
    """Whether one batch more is of no account: what it removes is far larger than what is left."""
    gradient, before = (_limit(some)[1] for some in (found, found[:-1]))
    return bool((gradient - before).norm() <= 1e-6 * max(gradient.norm().item(), 1e-12 * size))


def _doublings(rows: int) -> int:
    """How many of N, 2N, 4N ... remove all terms in 1/N that are as large as the last digit."""
    count, digits = 2, 0.0
    while digits < _DIGITS:
        count += 1
        digits = sum(math.log10(rows * 2**k) for k in range(count))
    return count


def _close(a: torch.Tensor, b: torch.Tensor, size: float) -> bool:
    return bool((a - b).abs().max() <= _SAME * size)


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= _SAME * max(1.0, abs(a))


def _extrapolated(on: list[torch.Tensor]) -> torch.Tensor:
    """The value at 1/N = 0 of numbers at N, 2N, 4N ... that are a power series in 1/N (Richardson)."""
    row = list(on)
    for power in range(1, len(on)):
        row = [(2**power * b - a) / (2**power - 1) for a, b in itertools.pairwise(row)]
    return row[0]
