"""What is audited as a whole update: its loss, and which of its numbers is the KL coefficient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.reading.names import read_name
from kl_companion.auditing.reading.repairs import readable
from kl_companion.auditing.reading.request import NOTHING, AuditRequest
from kl_companion.auditing.reading.roles import Read
from kl_companion.auditing.reading.subject import Moved, Reading
from kl_companion.auditing.updates.advantages import Advantage, normalizer
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.keywords import renamed
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss, Problem


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
        group: Answers in a group, where the loss's text names a size.
        moved: The loss with inputs that can be moved one by one; None where there are none by name.
    """

    name: str
    loss: Loss
    beta: float | None
    coefficient: str
    with_beta: Callable[[float], Step] | None
    reading: Reading | None = None
    recipe: Recipe | None = None
    group: int | None = None
    moved: Moved | None = None

    def on(self, problem: Problem) -> Loss:
        """The loss with the critic of a world, where a recipe names one."""
        return self.loss if self.recipe is None else self.recipe.at(problem).loss

    @property
    def undiscounted(self) -> Step:
        """The step without a critic and discounts: what its rewards and its penalty are meant to be."""
        of = self.recipe
        if of is None or (of.gamma == of.lam == 1 and not isinstance(of.critic, str)):
            return self
        return as_step(replace(of, gamma=1.0, lam=1.0, critic=None))


@renamed(mapped="roles", settings="options")
def as_step(
    step: Recipe | Callable[..., Any],
    *,
    roles: Mapping[str, str] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
    group_size: int | None = None,
) -> Step:
    """The step of a `Recipe`, or of a loss as it stands in a trainer, see `kl_companion.auditing.as_loss`.

    Args:
        step: What is audited.
        roles: What parameters mean, {their name: role}.
        options: Values of options.
        group_size: Answers that will be passed, where a loss may not run on other numbers.

    Raises:
        ValueError: roles or options for a recipe; as `kl_companion.auditing.as_loss`.
    """
    if isinstance(step, Recipe):
        if roles or options:
            raise ValueError("a Recipe got roles or options, expected none: they are for functions")
        made = Step(step.name or "the recipe", step.loss, None, "", None, recipe=step)
        if step.kl is None:
            return made

        def with_other(beta: float) -> Step:
            return as_step(replace(step, beta=beta))

        return made._replace(beta=step.beta, coefficient="beta", with_beta=with_other)
    roles = {**dict.fromkeys(_counts(step), "group_size"), **roles}
    taken = {n: r for n, r in roles.items() if n not in options}
    subject = readable(AuditRequest(step, roles=taken, options=options, group_size=group_size))
    name, value = subject.reading.coefficient if subject.reading else ("", None)

    def with_beta(beta: float) -> Step:
        return as_step(step, roles=roles, options={**options, name: beta}, group_size=group_size)

    return Step(
        subject.title,
        subject.loss,
        value,
        name,
        with_beta if name else None,
        subject.reading,
        group=subject.group.size if subject.group else None,
        moved=subject.moved,
    )


def _counts(step: Callable[..., Any]) -> list[str]:
    """Return the parameters whose default is the number of answers to a prompt: here a batch has one."""
    if not inspect.isroutine(step):
        return []
    return [
        name
        for name, p in inspect.signature(step).parameters.items()
        if type(p.default) is int and isinstance(r := read_name(name), Read) and r.role == "group_size"
    ]


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
