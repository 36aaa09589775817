"""The worlds on which a loss is looked at, what it does on them, and the objectives' fields there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.explanations import Seen, factors
from kl_companion.auditing.fit.findings import GroupGap
from kl_companion.auditing.fit.least_squares import ZERO, degrees
from kl_companion.auditing.worlds.objective import Computed, ValueAndField
from kl_companion.auditing.worlds.objectives import Objective, fields_and_values
from kl_companion.auditing.worlds.trees import Condition, known_fields, worlds
from kl_companion.tabular import Loss, Problem, expectation, expected_gradient
from kl_companion.tabular.populations import Limit, large_batches, population_tree

LARGEST_GROUP = 3  # whose draws from a tree of three tokens can be enumerated
GROUPS = (2, 3, 4)
_NOTHING = 1e-14  # rounding, for a loss whose own value is zero


class Looked(NamedTuple):
    """A loss on the worlds of one condition: the longest world first."""

    worlds: tuple[Seen, ...]
    sums: bool
    settles: bool


def look(
    loss_fn: Loss, condition: Condition, *, group_size: int | None, known: dict[str, Objective], head: int = 0
) -> Looked:
    """A loss under one condition: in the limit of large batches, or on groups of the size asked for.

    Args:
        loss_fn: The loss.
        condition: Where it is looked at.
        group_size: Answers per batch; None is the limit.
        known: The objectives whose fields it is compared with.
        head: Of how many likeliest tokens it is; 0 of none.

    Whether a batch of twice the size is needed is tried on the smallest world: loops over rows are slow.
    """
    vocab = head + 2 if head else 3 if group_size in (None, 1) else 2
    longer = group_size is None or group_size <= (1 if head else LARGEST_GROUP)
    places = worlds(condition, vocab, longer, head > 0)
    fields = known_fields(condition, vocab, tuple(known), longer, head > 0)
    if group_size is None:
        smallest = min(places, key=lambda w: len(w.which))
        least = large_batches(loss_fn, smallest)
        limits = [least if w is smallest else large_batches(loss_fn, w, like=least) for w in places]
    else:
        limits = [_of_groups(loss_fn, w.problem, group_size) for w in places]
    seen = (_seen(found, w.problem, f) for found, w, f in zip(limits, places, fields, strict=True))
    return Looked(tuple(seen), any(x.sums for x in limits), all(x.settles for x in limits))


def look_at(
    loss_fn: Loss, problems: Sequence[Problem], *, group_size: int, known: dict[str, Objective]
) -> Looked:
    """A loss on problems that the caller gave, group by group."""
    seen = (_seen(_of_groups(loss_fn, p, group_size), p, fields_and_values(known, p)) for p in problems)
    return Looked(tuple(seen), sums=False, settles=True)


def _of_groups(loss_fn: Loss, problem: Problem, group_size: int) -> Limit:
    found = expectation(loss_fn, problem, group_size=group_size)
    return Limit(found.value, found.gradient, found.magnitude, sums=False, settles=True)


def _seen(found: Limit, problem: Problem, known: Mapping[str, ValueAndField]) -> Seen:
    # measured against what is added up, so that a small beta is not taken for none
    zero = bool(found.gradient.norm() < max(ZERO * found.contributions, _NOTHING))
    return Seen(
        found.value,
        found.gradient.flatten(),
        zero,
        *_fields_and_values(known),
        factors(problem),
    )


def _fields_and_values(
    known: Mapping[str, ValueAndField],
) -> tuple[Mapping[str, torch.Tensor], Mapping[str, float]]:
    fields = Computed(known, lambda name: known[name][1].flatten())
    return fields, Computed(known, lambda name: known[name][0])


def beside_others(
    looked: Looked, where: Condition | Sequence[Problem], known: dict[str, Objective], head: int
) -> Looked:
    """The same loss beside other objectives: in the limit of large batches, or on problems of the caller."""
    if isinstance(where, Condition):
        fields = known_fields(where, head + 2 if head else 3, tuple(known), True, head > 0)
    else:
        fields = tuple(fields_and_values(known, p) for p in where)
    pairs = zip(looked.worlds, map(_fields_and_values, fields), strict=True)
    return looked._replace(worlds=tuple(w._replace(fields=f, values=v) for w, (f, v) in pairs))


def gaps(loss_fn: Loss, condition: Condition, head: int = 0) -> tuple[GroupGap, ...]:
    """Groups of 2 to 4 answers against large batches, on a tree of two tokens; of a head, of 2 and 3."""
    off_policy, eos, scale, _ = condition
    if head:
        place = worlds(condition, head + 2, headed=True)[1]
    else:
        place = population_tree(2, 2, seed=0, eos=eos, off_policy=off_policy, scale=scale)
    limit = large_batches(loss_fn, place).gradient.flatten()
    found = []
    for size in GROUPS[:2] if head else GROUPS:
        try:
            g = expected_gradient(loss_fn, place.problem, group_size=size).flatten()
        except ValueError:
            found.append(GroupGap(size, math.nan, math.nan, fails=True))
            continue
        lengths = g.norm().item(), limit.norm().item()
        angle = degrees(g, limit) if min(lengths) > _NOTHING else math.nan
        ratio = math.nan
        if max(lengths) > _NOTHING:
            ratio = lengths[0] / lengths[1] if lengths[1] > _NOTHING else math.inf
        found.append(GroupGap(size, angle, ratio))
    return tuple(found)
