"""What is audited as a whole update: its loss, and which of its numbers is the KL coefficient."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.adapt import NOTHING, Reading, as_subject
from kl_companion.auditing.constructing import ASSUMED, Chosen, callable_of, parameters_of
from kl_companion.auditing.updates.advantages import Advantage, normalizer
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss

_COEFFICIENT = next(pattern for pattern, _, what in ASSUMED if what == "KL coefficient")


class Step(NamedTuple):
    """A loss of a batch with rewards.

    Attributes:
        name: What it is called.
        loss: A function of the answers to one prompt, with rewards.
        beta: Its KL coefficient; None where it is not known.
        coefficient: The parameter that holds it; "" where none was found.
        with_beta: The same step with another coefficient; None where no parameter holds it.
        reading: How a function's parameters were read; None of a `Recipe`.
        recipe: The record, where it was one.
    """

    name: str
    loss: Loss
    beta: float | None
    coefficient: str
    with_beta: Callable[[float], Step] | None
    reading: Reading | None = None
    recipe: Recipe | None = None


def as_step(
    step: Recipe | Callable[..., Any],
    *,
    mapped: Mapping[str, str] = NOTHING,
    settings: Mapping[str, Any] = NOTHING,
) -> Step:
    """The step of a `Recipe`, or of a loss as it stands in a trainer, see `kl_companion.auditing.as_loss`.

    Args:
        step: What is audited.
        mapped: What parameters mean, {their name: role}.
        settings: Values of options.

    Raises:
        ValueError: a map or settings for a recipe; as `kl_companion.auditing.as_loss`.
    """
    if isinstance(step, Recipe):
        if mapped or settings:
            raise ValueError("a Recipe got a map or settings, expected none: they are for functions")
        return Step(
            step.name or "the recipe",
            step.loss,
            step.beta if step.kl is not None else None,
            "beta" if step.kl is not None else "",
            (lambda beta: as_step(replace(step, beta=beta))) if step.kl is not None else None,
            recipe=step,
        )
    subject = as_subject(step, mapped=mapped, settings=settings)
    name, value = _coefficient(step, settings)

    def with_beta(beta: float) -> Step:
        return as_step(step, mapped=mapped, settings={**settings, name: beta})

    return Step(subject.title, subject.loss, value, name, with_beta if name else None, subject.reading)


def with_advantages(step: Step, how: Advantage) -> Step:
    """The step of a trainer that makes advantages of the rewards of a group first, see `normalizer`.

    Raises:
        ValueError: an unknown name, or a recipe, which makes its own.
    """
    if step.recipe is not None:
        raise ValueError(f"a Recipe got advantage={how!r}, expected none: its own field says it")
    normalize = normalizer(how)

    def loss(rollout: Rollout) -> torch.Tensor:
        rewards = rollout.rewards
        if rewards is None:
            raise ValueError("the rollout has no rewards, expected one per answer [batch]")
        return step.loss(replace(rollout, rewards=normalize(rewards.unsqueeze(0))[0]))

    more = step.with_beta
    return step._replace(
        loss=loss, with_beta=None if more is None else lambda beta: with_advantages(more(beta), how)
    )


def _coefficient(step: Any, settings: Mapping[str, Any]) -> tuple[str, float | None]:
    """Name and value of the one number that is called like a KL coefficient; ("", None) without one."""
    chosen = Chosen(settings)
    function = callable_of(step, chosen)
    named = {n: v for n, v in chosen.defaults.items() if _is_coefficient(n)}
    for p in parameters_of(function, ""):
        if _is_coefficient(p.name):
            named[p.name] = p.default if p.default is not inspect.Parameter.empty else 1.0
    named |= {n: v for n, (v, what) in chosen.assumed.items() if what == "KL coefficient"}
    # a field is set by its name or by its path
    named |= {
        next((m for m in named if m.endswith(f".{n}")), n): v
        for n, v in settings.items()
        if _is_coefficient(n)
    }
    if len(named) != 1:
        return "", None
    ((name, value),) = named.items()
    return name, float(value) if isinstance(value, int | float) else None


def _is_coefficient(name: str) -> bool:
    return re.fullmatch(_COEFFICIENT, name.rpartition(".")[2].lower()) is not None
