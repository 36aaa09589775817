"""Sampled estimates, batched over repeats and worlds: what the exact moments are checked against."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kl_companion.checks import check_choice, refuse_nan
from kl_companion.tabular.draws import BASELINES, Baseline
from kl_companion.tabular.scores import (
    EstimatorLike,
    SinglePlacement,
    coefficients,
    sample_gradients,
    world,
)
from kl_companion.tabular.worlds import Problem


class Estimates(NamedTuple):
    """Independent estimates, each the mean of n draws; [worlds] in front for a stack.

    Attributes:
        values: [repeats].
        gradients: [repeats, rows, vocab].
    """

    values: torch.Tensor
    gradients: torch.Tensor


def simulate(
    estimator: EstimatorLike,
    problem: Problem,
    n: int,
    *,
    repeats: int,
    seed: int,
    placement: SinglePlacement = "loss",
    baseline: Baseline | None = None,
) -> Estimates:
    """Draw ``repeats`` estimates of value and gradient, each from n samples.

    How often each sequence was drawn is all that a mean needs, so that every estimate is a row of one
    matrix product.

    Args:
        estimator: As `exact_moments`.
        problem: A world, or a stack of worlds.
        n: Draws per estimate.
        repeats: Estimates per world.
        seed: Of the generator; the same seed gives the same bytes.
        placement: As `exact_moments`.
        baseline: As `exact_moments`.

    Raises:
        ValueError: as `exact_moments`; also repeats below 1, or estimates that would be NaN.
    """
    if baseline is not None:
        check_choice("baseline", baseline, BASELINES)
    if baseline is not None and placement != "reward":
        raise ValueError(f"placement={placement!r} got baseline={baseline!r}, expected 'reward'")
    least = 1 if baseline is None else 2
    if n < least or repeats < 1:
        raise ValueError(
            f"n={n}, repeats={repeats}: expected n of at least {least} with baseline={baseline!r}, "
            "and at least one repeat"
        )
    at = world(problem)
    x, c = coefficients(estimator, at, placement)
    generator = torch.Generator().manual_seed(seed)
    count = at.probability.shape[-1]
    drawn = torch.multinomial(
        at.probability.reshape(-1, count), repeats * n, replacement=True, generator=generator
    )
    drawn = drawn.reshape(*at.probability.shape[:-1], repeats, n)
    shares = torch.zeros(*drawn.shape[:-1], count, dtype=torch.float64)
    shares = shares.scatter_add(-1, drawn, torch.ones_like(drawn, dtype=torch.float64)) / n

    def mean(coefficient: torch.Tensor) -> torch.Tensor:
        each = sample_gradients(at, coefficient).flatten(-2)
        return (shares @ each).unflatten(-1, at.policy.shape[-2:])

    values, gradients = (shares * x.unsqueeze(-2)).sum(-1), mean(c)
    if baseline is not None:
        score = mean(problem.completion_mask.expand_as(c))
        gradients = gradients - values[..., None, None] * score
        if baseline == "leave_one_out":
            gradients = gradients * (n / (n - 1))
    return Estimates(
        refuse_nan("the estimate", values, **{"that of a sequence": x}),
        refuse_nan("the gradient", gradients, coefficient=c),
    )
