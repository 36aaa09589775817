"""The audit of a whole update: what it makes of rewards and of the KL coefficient, prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.auditor import finding_of
from kl_companion.auditing.fit.findings import Condition
from kl_companion.auditing.judgment.summary import explanation, row, terms
from kl_companion.auditing.reading.subject import NOTHING
from kl_companion.auditing.repair.patches import reads_outside
from kl_companion.auditing.updates.advantages import Advantage
from kl_companion.auditing.updates.direction import reward_sign
from kl_companion.auditing.updates.effective import REWARD, REWARDS, share
from kl_companion.auditing.updates.expected import expected_update, expected_updates
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.auditing.updates.record import JUDGED, MORE, OnPrompt, UpdateAudit
from kl_companion.auditing.updates.record import NOTHING as NO_UPDATE
from kl_companion.auditing.updates.step import Step, as_step, with_advantages
from kl_companion.auditing.updates.wanted import wanted_of
from kl_companion.auditing.updates.worlds import GRADED, prompt
from kl_companion.auditing.worlds.objectives import OBJECTIVES, objectives
from kl_companion.keywords import renamed
from kl_companion.rollout import Rollout, masked
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import Population, batch_gradient, large_batches

SUCCESS = (0.01, 0.1, 0.5, 0.9, 0.99)
GROUPS = (2, 4, 8)
_FALLBACK = ("sequence_reverse_kl", "token_reverse_kl", "sequence_forward_kl", "token_forward_kl")
_EXACT = 1e-4  # degrees between an update and a sum that it is
_ROUNDING = 1e-6  # of an update: trainers compute in float32
_LOOKED = Condition(False, True, 1.0)  # fresh samples, answers of several lengths, small log-ratios
_TRIED = partial(objectives, heads=False)


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
    roles: Mapping[str, str] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
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
    parts = _parts(of, run)
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
        parts.reward,
        parts.penalties,
        parts.named,
        tuple(seen[False]),
        tuple(seen[True]),
        wanted,
        judged,
        advantage,
        {group: str(error) for group, error in refused.items()},
        parts.order,
        parts.inside,
    )


def _sizes(step: Step, sizes: Sequence[int]) -> tuple[list[int | None], dict[int | None, ValueError]]:
    """Return the sizes of groups on which a step runs, large ones last, and the errors of the others.

    A step that compares answers by their place in the batch, as ``rewards.view(-1, 4)``, says nothing in a
    batch that has several of its groups: their members are in one order of many.

    Raises:
        ValueError: it runs on none.
    """
    at, run = prompt(0.5, GRADED), list[int | None]()
    refused = dict[int | None, ValueError]()
    for group in (*sizes, None):
        rows = at.which if group is None else torch.arange(group) % len(at.problem.rewards)
        try:
            gradients = [batch_gradient(step.loss, replace(at, which=x))[1] for x in (rows, *_orders(rows))]
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


def _seen(step: Step, title: str, at: Population, group: int | None, parts: Parts) -> OnPrompt:
    scaled = group is None and parts.order != 0
    if scaled and parts.loss is not None:
        step = step._replace(loss=parts.loss, with_beta=None)
    update = _update(step, at, group)
    grows = math.nan
    if title == "equal" and step.with_beta is not None and step.beta and update.norm() > NO_UPDATE:
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
        return expected_update(step.loss, at, group)
    return expected_updates(of.loss, at, group, steps=of.updates, rate=of.rate)


class Parts(NamedTuple):
    """What the rewards and the KL term of a step are, see `UpdateAudit`.

    Attributes:
        reward: See there.
        penalties: See there.
        named: See there.
        group: Answers in the groups that say so; None for large ones.
        order: See there.
        inside: See there.
        loss: The loss, whose vanishing part is multiplied by the number of answers where there is an order.
    """

    reward: str
    penalties: Mapping[str, float]
    named: bool
    group: int | None
    order: int = 0
    inside: str | None = None
    loss: Loss | None = None


def _parts(step: Step, run: Sequence[int | None]) -> Parts:
    """Name the parts of a step: in large batches where it runs on them, else in the smallest groups."""
    group = None if None in run else run[0]
    loss, order = _of_one_order(step.loss) if group is None else (step.loss, 0)
    found = _named(loss, step, group)._replace(order=order, loss=loss)
    if found.named or not _reads_outside(loss):
        return found
    clean = _inside(loss)
    within = _named(clean, step, group)
    if not within.named:
        return found._replace(inside="")
    exact = row(finding_of(clean, _LOOKED, tried=_TRIED, max_terms=2, group_size=group))
    return within._replace(named=False, order=order, loss=loss, inside=exact)


def _of_one_order(loss: Loss) -> tuple[Loss, int]:
    """Return the loss, and 1 where its rewards vanish as 1 / answers in a large batch, -1 where its KL does.

    What vanishes is multiplied by the number of answers in the loss that is returned.
    """
    at, plain = prompt(0.5), unrewarded(loss)
    rewarded = _difference(loss, plain)
    try:
        parts = {1: (rewarded, plain), -1: (plain, rewarded)}
        acts = {order: _acts(vanishing, at) for order, (vanishing, _) in parts.items()}
        for order, (vanishing, other) in parts.items():
            grown = partial(_by_answers, vanishing)
            if acts[-order] and not acts[order] and _acts(grown, at):
                return (lambda rollout, grown=grown, other=other: grown(rollout) + other(rollout)), order
    except ValueError:  # a standard deviation of equal rewards, say
        pass
    return loss, 0


def _by_answers(loss: Loss, rollout: Rollout) -> torch.Tensor:
    return len(rollout.logp) * loss(rollout)


def _acts(loss: Loss, at: Population) -> bool:
    """Whether a part has an expected update in large batches, beside what rounding leaves of it."""
    limit = large_batches(loss, at)
    return limit.settles and bool(limit.gradient.norm() > _ROUNDING * limit.contributions)


def _reads_outside(loss: Loss) -> bool:
    try:
        return reads_outside(loss)
    except ValueError:  # the loss does not run on that batch
        return False


def _inside(loss: Loss) -> Loss:
    """Return the loss where all log-probs outside the mask are 0."""

    def run(rollout: Rollout) -> torch.Tensor:
        names = ("logp", "ref_logp", "behavior_logp")
        held = {n: x for n in names if (x := getattr(rollout, n)) is not None}
        inside: dict[str, Any] = {n: masked(x, rollout.completion_mask) for n, x in held.items()}
        return loss(replace(rollout, **inside))

    return run


def _named(loss: Loss, step: Step, group: int | None) -> Parts:
    """Name what the rewards and the KL term are in groups of one size of fresh samples."""
    finding = finding_of(loss, _LOOKED, tried=_TRIED, max_terms=2, group_size=group)
    names = terms(finding)
    if names and not any(OBJECTIVES[t.objective].rewards for t in names) and not step.reads_rewards:
        said = " and ".join(t.objective for t in names)
        raise ValueError(
            f"{step.name} minimizes {said} and no rewards, expected a loss that reads rewards or advantages; "
            "kl_companion.audit takes a KL term"
        )
    penalty = _penalty(unrewarded(loss), group)
    if penalty is None and step.with_beta is not None and step.beta:  # it may need rewards that differ
        penalty = _penalty(_difference(step.with_beta(2 * step.beta).loss, step.loss), group)
    at = prompt(0.1)
    update = expected_update(loss, at, group)

    def rest(reward: str, parts: Mapping[str, float]) -> float:
        return share(update, at.problem, parts, reward=reward).rest

    named = penalty is not None
    if penalty is None:
        kl = [t.objective for t in names if OBJECTIVES[t.objective].regularizer]
        penalty = {min(kl or _FALLBACK, key=lambda n: rest(REWARD, {n: 1.0})): 1.0}
    reward = min(REWARDS, key=lambda r: round(rest(r, penalty), 6))
    named = named and (bool(names) or rest(reward, penalty) < _EXACT)
    return Parts(reward, penalty, named, group)


def unrewarded(loss: Loss) -> Loss:
    """Return a loss with rewards of 0."""
    return lambda rollout: loss(replace(rollout, rewards=torch.zeros_like(rollout.logp[:, 0]).detach()))


def _difference(loss: Loss, other: Loss) -> Loss:
    return lambda rollout: loss(rollout) - other(rollout)


def _penalty(rest: Loss, group: int | None) -> dict[str, float] | None:
    """What is left where all rewards are 0, {objective: weight}, the first of which is 1.

    {} where nothing is left; None where it is not known.
    """
    try:
        finding = finding_of(rest, _LOOKED, tried=_TRIED, max_terms=2, group_size=group)
    except ValueError:  # a standard deviation of equal rewards, say
        return None
    if finding.zero:
        return {}
    i, found = explanation(finding), terms(finding)
    if i is None or any(t.sign == 0 for t in found):
        return None
    if not any(OBJECTIVES[t.objective].regularizer for t in found):
        return {}
    weights = {t.objective: finding.matches[i][t.objective] for t in found}
    first = next(iter(weights.values()))
    return {n: c / first for n, c in weights.items()}
