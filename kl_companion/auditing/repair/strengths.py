"""How strong the KL term of a loss is near the reference."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.least_squares import degrees
from kl_companion.auditing.judgment.distances import without_rounding, world
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import Population, large_batches, population_tree

CLOSE = 0.02  # of the usual log-ratios: near the reference, where all estimators of one KL agree
SAME = 0.1  # of a strength, relatively: estimators of one KL differ by less so close to the reference
CONSTANT = 1e-9  # rounding, relatively
_ALONG = 20.0  # degrees between gradients near the reference whose lengths are compared
_NOTHING = 1e-15  # rounding of a value


class NearReference(NamedTuple):
    """A loss near the reference: its gradient, its value less that at the reference, and the latter."""

    gradient: torch.Tensor
    gain: float
    at: float


def ratio(mine: NearReference, theirs: NearReference, of_value: bool = True) -> float:
    """Return how many times as strong the KL term of a loss is as that of another, near the reference.

    It is the ratio of two gradients along one line, and of what the values gain by the distance; of gradients
    alone, if known, without ``of_value``. NaN where neither is known, as where a gradient vanishes and the
    value does not grow, where they disagree, or where the value at the reference is neither 0 nor that of the
    other.
    """
    if min(abs(mine.at), abs(mine.at - theirs.at)) > CONSTANT * (1 + abs(theirs.at)):  # of another formula
        return math.nan
    g, g0 = mine.gradient, theirs.gradient
    ratios = []
    if g.any() and g0.any() and min(degrees(g, g0), degrees(-g, g0)) < _ALONG:
        ratios.append((g.norm() / g0.norm()).item())
    if min(abs(mine.gain), abs(theirs.gain)) > _NOTHING and (of_value or not ratios):
        ratios.append(abs(mine.gain / theirs.gain))
    agree = ratios and max(ratios) <= (1 + SAME) * min(ratios)
    return ratios[0] if agree else math.nan


def near(loss_fn: Loss, size: float) -> NearReference:
    """Measure a loss near the reference.

    Args:
        loss_fn: A scalar function of a rollout.
        size: How far the reference is, in units of the usual log-ratios.
    """
    close, at = (without_rounding(loss_fn, world(x, eos=False)) for x in (size, 0.0))
    return NearReference(close.gradient.flatten(), close.value - at.value, at.value)


def at_reference(loss_fn: Loss, eos: bool) -> torch.Tensor:
    """The gradient of a loss where policy and reference agree: that of all but the KL term."""
    tree = population_tree(3, 2, parts=12, seed=7, eos=eos)
    problem = tree.problem._replace(ref_logits=tree.problem.logits)
    return large_batches(loss_fn, Population(problem, tree.which)).gradient
