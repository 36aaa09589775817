"""The audit of a whole update: what it makes of rewards and of the KL coefficient, prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from kl_companion.auditing.judgment.inputs import WRONG_CLIP, inputs, said_as
from kl_companion.auditing.reading.subject import NOTHING as NO_NAMES
from kl_companion.auditing.updates.advantages import Advantage
from kl_companion.auditing.updates.direction import reward_sign
from kl_companion.auditing.updates.effective import MORE, NOTHING, OnPrompt, share
from kl_companion.auditing.updates.expected import expected_update, expected_updates
from kl_companion.auditing.updates.parts import UpdateParts, parts_of
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.auditing.updates.record import JUDGED, UpdateAudit
from kl_companion.auditing.updates.step import Step, as_step, with_advantages
from kl_companion.auditing.updates.wanted import wanted_of
from kl_companion.auditing.updates.worlds import GRADED, prompt
from kl_companion.keywords import renamed
from kl_companion.tabular.populations import Population, batch_gradient

SUCCESS = (0.01, 0.1, 0.5, 0.9, 0.99)
GROUPS = (2, 4, 8)
_ROUNDING = 1e-6  # of an update: trainers compute in float32


def prompts(*, off_policy: bool = False) -> dict[str, Population]:
    """The prompts on which an update is looked at, by what the card calls them."""
    binary = {f"{100 * p:g} %": prompt(p, off_policy=off_policy) for p in SUCCESS}
    graded = prompt(0.5, GRADED, off_policy=off_policy)
    return {**binary, "graded": graded, "equal": prompt(0.5, [1.0] * 4, off_policy=off_policy)}


@renamed(map="roles", set="options")
def audit_update(
    step: Recipe | Callable[..., Any],
    *,
    want: str | None = None,
    group_size: int | None = None,
    groups: Sequence[int] = GROUPS,
    advantage: Advantage | None = None,
    roles: Mapping[str, str] = NO_NAMES,
    options: Mapping[str, Any] = NO_NAMES,
    progress: Callable[[str], None] | None = None,
) -> UpdateAudit:
    """What a whole update maximizes: update = a grad E[R] - b grad KL + rest; its effective beta is b / a.

    The expected update is exact: all groups of the answers to a prompt are enumerated, and in the limit of
    large groups a batch holds every answer in proportion to its probability. Prompts differ in how many of
    their answers are right, from 1 in 100 to 99; one has graded rewards, and one the same reward for all.

    Args:
        step: A `Recipe`; or a loss of answers with rewards or advantages as it stands in a trainer: whatever
            `kl_companion.audit` takes, with all answers of a batch to one prompt.
        want: ``"E[R] - 0.04 * sequence_reverse_kl"``: what it is meant to maximize; ``beta`` for the step's
            own coefficient. Judged on every prompt, within 20 % of the coefficient and 5 degrees.
        group_size: Answers to a prompt by which ``want`` is judged; 8 by default.
        groups: Sizes of groups that are looked at, beside large ones.
        advantage: What to make of the rewards of a group before the step is given them, for a loss that takes
            advantages: see `normalizer`.
        roles: What parameters mean, ``{"x_logps": "ref_logp"}``, where their names do not say it.
        options: Values of options.
        progress: Called with a line of text per prompt.

    Raises:
        ValueError: groups of fewer than two answers; as `kl_companion.audit`; a step that reads no rewards; a
            ``want`` without a number for a step whose coefficient is not known.

    Source: this book; yao2026future, proposition 3.2, for large groups.
    """
    wanted = None if want is None else wanted_of(want)
    size = JUDGED if group_size is None else group_size
    sizes = sorted({*groups, size})
    if not sizes or sizes[0] < 2:
        raise ValueError(f"got groups of {sizes[:1]}, expected at least two answers to a prompt")
    of = as_step(step, roles=roles, options=options, group_size=group_size)
    if of.group is not None:
        sizes = sorted({*sizes, of.group})
    if wanted is not None and wanted.objectives and wanted.beta is None and of.beta is None:
        raise ValueError(
            f"want is {want!r}, and the coefficient of {of.name} is not known: expected a number instead of "
            "beta, 'E[R] - 0.04 * sequence_reverse_kl'"
        )
    if advantage is not None:
        of = with_advantages(of, advantage)
    run, refused = _sizes(of, sizes)
    if group_size is not None and group_size in refused:
        raise refused[group_size]
    judged = size if size in run else max((n for n in run if n is not None), default=size)
    parts = parts_of(of.undiscounted, run)
    seen: dict[bool, list[OnPrompt]] = {False: [], True: []}
    for stale in (False, True):
        for title, at in prompts(off_policy=stale).items():
            if progress is not None:
                progress(f"{'stale' if stale else 'fresh'} samples, rewards: {title}")
            for group in run[-1:] if stale else run:
                try:
                    seen[stale].append(_seen(of, title, at, group, parts))
                except ValueError as error:  # NaN where all rewards are equal, say
                    refused.setdefault(group, error)
    return UpdateAudit(
        of,
        seen=tuple(seen[False]),
        stale=tuple(seen[True]),
        want=wanted,
        group_size=judged,
        advantage=advantage,
        refused={group: str(error) for group, error in refused.items()},
        warnings=tuple(said_as(WRONG_CLIP, inputs(of.moved, of.reading))),
        **{name: x for name, x in parts._asdict().items() if name not in ("group", "loss")},
    )


def _sizes(step: Step, sizes: Sequence[int]) -> tuple[list[int | None], dict[int | None, ValueError]]:
    """Return the sizes of groups on which a step runs, large ones last, and the errors of the others.

    A step that compares answers by their place in the batch, as ``rewards.view(-1, 4)``, says nothing in a
    batch that has several of its groups: their members are in one order of many.

    Raises:
        ValueError: it runs on none.
    """
    at, run = prompt(0.5, GRADED), list[int | None]()
    loss = step.on(at.problem)
    refused = dict[int | None, ValueError]()
    for group in (*sizes, None):
        rows = at.which if group is None else torch.arange(group) % len(at.problem.rewards)
        try:
            gradients = [batch_gradient(loss, replace(at, which=x))[1] for x in (rows, *_orders(rows))]
        except ValueError as error:
            refused[group] = error
            continue
        size = gradients[0].norm().clamp_min(1.0)
        if all((g - gradients[0]).norm() <= _ROUNDING * size for g in gradients):
            run.append(group)
        else:
            refused[group] = ValueError("it compares answers by their place in the batch")
    if not run:
        raise next(iter(refused.values()))
    return run, refused


def _orders(rows: torch.Tensor) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [rows[torch.randperm(len(rows), generator=draw)] for _ in range(3)]


def _seen(step: Step, title: str, at: Population, group: int | None, parts: UpdateParts) -> OnPrompt:
    scaled = group is None and parts.order != 0
    if scaled and parts.loss is not None:
        step = step._replace(loss=parts.loss, with_beta=None)
    update = _update(step, at, group)
    grows = math.nan
    if title == "equal" and step.with_beta is not None and step.beta and update.norm() > NOTHING:
        more = _update(step.with_beta(MORE * step.beta), at, group)
        grows = (more.norm() / update.norm()).item()
    found = share(update, at.problem, parts.penalties, reward=parts.reward)
    exchanged = group == parts.group
    sign = reward_sign(found, update, at, (lambda x: _update(step, x, group)) if exchanged else None)
    return OnPrompt(title, group, at.rewards_deviation, found, grows, sign)


def _update(step: Step, at: Population, group: int | None) -> torch.Tensor:
    """The expected update; of a recipe with several updates on one batch, their mean."""
    of = step.recipe
    if of is None or of.updates == 1:
        return expected_update(step.on(at.problem), at, group)
    return expected_updates(of.at(at.problem).loss, at, group, steps=of.updates, rate=of.rate)
