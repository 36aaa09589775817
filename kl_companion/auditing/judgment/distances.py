"""How far the gradient of a KL term is from the one that was meant, as a function of the KL."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.explanations import factors
from kl_companion.auditing.fit.least_squares import degrees
from kl_companion.auditing.worlds.objectives import OBJECTIVES, field
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import Limit, Population, large_batches, population_tree

_NOTHING = 1e-12
_ROUNDING = 1e-10  # of a gradient, in units of what is added up in it
# nats per token: how far the reference is moved away, in units of the usual log-ratios
SIZES = {0.01: 0.2863482827498842, 0.1: 0.8913724209613747, 1.0: 3.2538432889775777}
_CLOSE = 0.01  # of the usual log-ratios


class Distance(NamedTuple):
    """Two gradients at one KL.

    Attributes:
        kl: Reverse KL per token, in nats.
        degrees: Angle between them.
        percent: Length of the loss's gradient in percent of that of the other, both as they are. NaN where
            the loss has an unknown factor of the batch.
    """

    kl: float
    degrees: float
    percent: float


@cache
def world(size: float, *, eos: bool = True) -> Population:
    """Return a tree without rewards whose reference is so far away; its policy stays.

    Args:
        size: How far, in units of the usual log-ratios: one of `SIZES` for a KL per token.
        eos: Whether lengths vary; else a mean of K1 is a mean of the KL.
    """
    tree = population_tree(3, 2, parts=12, seed=7, eos=eos)
    away = tree.problem.logits - tree.problem.ref_logits
    problem = tree.problem._replace(
        ref_logits=tree.problem.logits - size * away, rewards=torch.zeros_like(tree.problem.rewards)
    )
    return Population(problem, tree.which)


def distances(
    loss_fn: Loss, wanted: str, *, coefficient: float = 1.0, unit: str = ""
) -> tuple[Distance, ...]:
    """Compare the KL part of a loss, on fresh samples without rewards, with a registered objective.

    Args:
        loss_fn: A scalar function of a rollout.
        wanted: The objective that was meant.
        coefficient: Its coefficient.
        unit: What it is divided by, a name of `UNITS`; lengths are NaN where that is not known.

    Returns:
        One for each of `SIZES`; none where the loss has no gradient without rewards, or is NaN there.
    """
    distances = []
    for kl, moved in SIZES.items():
        place = world(moved)
        try:
            mine = without_rounding(loss_fn, place).gradient.flatten()
        except ValueError:
            return ()
        theirs = field(OBJECTIVES[wanted], place.problem).flatten()
        if mine.norm() <= _NOTHING * theirs.norm():  # rounding, of a KL to the sampler
            return ()
        size = factors(place.problem)[unit] if unit in ("", "tokens", "positions") else math.nan
        scale = coefficient / size
        percent = 100 * (mine.norm() / theirs.norm()).item() / scale
        distances.append(Distance(kl, degrees(mine, theirs), percent))
    return tuple(distances)


def without_rounding(loss_fn: Loss, place: Population) -> Limit:
    """Return a loss in large batches, with a gradient of 0 where that is rounding of what is added up."""
    limit = large_batches(loss_fn, place)
    small = limit.gradient.norm() < _ROUNDING * limit.contributions
    return limit._replace(gradient=torch.zeros_like(limit.gradient)) if small else limit


def order(loss_fn: Loss) -> float:
    """Return the power of the log-ratio with which the gradient of a KL term vanishes near the reference.

    It is 1 for every divergence, 2 where two of them cancel; NaN where nothing is left without rewards.
    """
    try:
        limits = (without_rounding(loss_fn, world(size)) for size in (2 * _CLOSE, _CLOSE))
        far, near = (limit.gradient.norm().item() for limit in limits)
    except ValueError:
        return math.nan
    return math.log2(far / near) if near > 0 else math.nan
