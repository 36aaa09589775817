"""What an objective is, the registry of those that have a name, and their exact gradients on a world.

`kl_companion.auditing.worlds.objectives` has registered all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from kl_companion.checks import described
from kl_companion.estimators.record import same_function
from kl_companion.rollout import Rollout
from kl_companion.tabular import Problem

Scalar = Callable[[Rollout], torch.Tensor]


class Objective(NamedTuple):
    """A named objective.

    Attributes:
        name: The registered name.
        scalar: Its exact value from the rollout that lists *every* sequence once; differentiable.
        words: What it is, in a sentence.
        short: The same in a few words, for a row of a table.
        effect: What minimizing it does to the policy, in a sentence; "" where no short one is true.
        opposite: What maximizing it does; of a distance to the reference `AWAY` by default.
        source: Bib key and place.
        regularizer: Whether it measures a distance to the reference (rewards and entropies do not).
        rewards: Whether it is of the rewards: one such may stand beside any sum.
        off_policy_only: On-policy it coincides with another objective, so it is tried off-policy only.
        lengths_only: It is tried only where the lengths of sequences vary: elsewhere it is constant, or
            another objective divided by the length.
        heads_only: It is tried only for losses that read more of a distribution than the sampled token.
        cut: It is of a part of the vocabulary, or divided by the length of an answer: of those that read more
            than the sampled token, it is tried for losses that nothing else explains.
    """

    name: str
    scalar: Scalar
    words: str
    source: str
    short: str = ""
    effect: str = ""
    regularizer: bool = True
    off_policy_only: bool = False
    lengths_only: bool = False
    heads_only: bool = False
    rewards: bool = False
    cut: bool = False
    opposite: str = ""


OBJECTIVES: dict[str, Objective] = {}
AWAY = "The policy is pushed away from the reference by {}."


def register_objective(
    name: str,
    *,
    words: str,
    source: str,
    short: str = "",
    effect: str = "",
    opposite: str | None = None,
    regularizer: bool = True,
    off_policy_only: bool = False,
    lengths_only: bool = False,
    heads_only: bool = False,
    rewards: bool = False,
    cut: bool = False,
    overwrite: bool = False,
) -> Callable[[Scalar], Scalar]:
    """Register a scalar of an enumerated rollout as the objective ``name`` and return it untouched.

    The arguments are the fields of `Objective`; ``overwrite=True`` replaces another one of that name.

    Raises:
        ValueError: the name is taken by another function or other words, or what is registered is no
            function. A function that is defined again may replace itself, see
            `kl_companion.register_estimator`.
    """

    def decorate(fn: Scalar) -> Scalar:
        if not callable(fn):
            raise ValueError(f"the objective {name!r} is {described(fn)}, expected a function of a Rollout")
        taken = None if overwrite else OBJECTIVES.get(name)
        if taken is not None and not (taken.words == words and same_function(taken.scalar, fn)):
            raise ValueError(
                f"objective {name!r} is registered already ({taken.words}): expected a new name, or "
                "overwrite=True"
            )
        OBJECTIVES[name] = Objective(
            name,
            fn,
            words,
            source,
            short or words,
            effect,
            regularizer,
            off_policy_only,
            lengths_only,
            heads_only,
            rewards,
            cut,
            (AWAY.format(short or words) if regularizer else "") if opposite is None else opposite,
        )
        return fn

    return decorate


def field(objective: Objective, problem: Problem, logits: torch.Tensor | None = None) -> torch.Tensor:
    """Exact gradient of the objective with respect to the policy's logits, [rows, vocab]."""
    theta = (problem.logits if logits is None else logits).detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective.scalar(problem.rollout(theta)), theta)
    return gradient


def value(objective: Objective, problem: Problem) -> float:
    """Exact value of the objective."""
    with torch.no_grad():
        return objective.scalar(problem.rollout(problem.logits)).item()


def fields_and_values(
    known: Mapping[str, Objective], problem: Problem
) -> dict[str, tuple[float, torch.Tensor]]:
    """Of many objectives, exact value and gradient [rows, vocab], from one listing of the sequences."""
    theta = problem.logits.detach().clone().requires_grad_()
    rollout = problem.rollout(theta)
    found = {}
    for name, objective in known.items():
        value = objective.scalar(rollout)
        (gradient,) = torch.autograd.grad(value, theta, retain_graph=True)
        found[name] = (value.item(), gradient)
    return found


def total(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Sum of [count, seq] over the tokens of each sequence, [count]."""
    return (x * rollout.completion_mask).sum(-1)


def visits(rollout: Rollout) -> torch.Tensor:
    """Probability that each listed sequence is sampled, [count], held fixed."""
    return total(rollout.sampled_from, rollout).exp().detach()


def policy_visits(rollout: Rollout) -> torch.Tensor:
    """Probability of each listed sequence under the policy, [count], held fixed."""
    return total(rollout.logp, rollout).exp().detach()


def mean(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Mean of [count, seq] over the tokens of each sequence, [count]."""
    return total(x, rollout) / rollout.completion_mask.sum(-1)
