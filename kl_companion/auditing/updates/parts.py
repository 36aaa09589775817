"""The names of an update's parts: what its rewards and its KL term are, and how they grow with a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.findings import Condition
from kl_companion.auditing.fit.fit import finding_of
from kl_companion.auditing.fit.parts import without_rewards
from kl_companion.auditing.judgment.inputs import reads_outside, without_padding
from kl_companion.auditing.judgment.summary import row, terms
from kl_companion.auditing.updates.effective import REWARDS, multiples, share
from kl_companion.auditing.updates.expected import expected_update
from kl_companion.auditing.updates.step import Step
from kl_companion.auditing.updates.worlds import prompt
from kl_companion.auditing.worlds.objectives import OBJECTIVES, field, get_objective
from kl_companion.auditing.worlds.plan import FitOptions
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import large_batches

_FALLBACK = ("sequence_reverse_kl", "token_reverse_kl", "sequence_forward_kl", "token_forward_kl")
_EXACT = 1e-4  # degrees between an update and a sum that it is
_ROUNDING = 1e-6  # of an update: trainers compute in float32
_LOOKED = Condition(False, True, 1.0)  # fresh samples, answers of several lengths, small log-ratios
_FIT = FitOptions(max_terms=2)


class UpdateParts(NamedTuple):
    """What the rewards and the KL term of a step are, see `UpdateAudit`.

    Attributes:
        group: Answers in the groups that say so; None for large ones.
        loss: The loss, whose vanishing part is multiplied by the number of answers where there is an order.
    """

    reward: str
    penalties: Mapping[str, float]
    named: bool
    group: int | None
    off: float = 0.0
    order: int = 0
    inside: str | None = None
    loss: Loss | None = None


def parts_of(step: Step, run: Sequence[int | None]) -> UpdateParts:
    """Name the parts of a step: in large batches where it runs on them, else in the smallest groups."""
    group = None if None in run else run[0]
    loss, order = _of_one_order(step.loss) if group is None else (step.loss, 0)
    found = _named(loss, step, group)._replace(order=order, loss=loss)
    try:
        if found.named or not reads_outside(loss):
            return found
    except ValueError:  # the loss does not run on that batch
        return found
    clean = without_padding(loss)
    within = _named(clean, step, group)
    if not within.named:
        return found._replace(inside="")
    exact = row(finding_of(clean, _LOOKED, _FIT._replace(group_size=group)))
    return within._replace(named=False, order=order, loss=loss, inside="" if "?" in exact else exact)


def _of_one_order(loss: Loss) -> tuple[Loss, int]:
    """Return the loss with rewards and KL of one order in the number of answers n, and the KL's order before.

    A part that is divided by n once more than a mean vanishes in a large batch, and a sum grows: both are
    made means. The second is how many factors of n the KL has that the rewards have not.
    """
    plain = without_rewards(loss)
    rewarded = _difference(loss, plain)
    try:
        of_rewards, of_kl = _order(rewarded), _order(plain)
    except ValueError:  # a standard deviation of equal rewards, say
        return loss, 0
    if of_rewards is None or of_kl is None or of_rewards == of_kl:
        return loss, 0

    def means(rollout: Rollout) -> torch.Tensor:
        n = float(len(rollout.logp))
        return rewarded(rollout) * n**-of_rewards + plain(rollout) * n**-of_kl

    return means, of_kl - of_rewards


def _order(part: Loss) -> int | None:
    """Return 0 for a part that is a mean over a large batch, 1 for a sum, -1 for a mean over n; else None."""
    at = prompt(0.5)
    for order, scaled in ((0, part), (-1, lambda rollout: len(rollout.logp) * part(rollout))):
        limit = large_batches(scaled, at)
        if limit.settles and limit.gradient.norm() > _ROUNDING * limit.contributions:
            return order + limit.sums if order == 0 else order
    return None


def _named(loss: Loss, step: Step, group: int | None) -> UpdateParts:
    """Name what the rewards and the KL term are in groups of one size of fresh samples."""
    finding = finding_of(loss, _LOOKED, _FIT._replace(group_size=group))
    names = terms(finding)
    reads = step.reading.reads if step.reading else ()
    rewarded = any(r.role == "rewards" for r in reads) or any(OBJECTIVES[t.objective].rewards for t in names)
    if names and not rewarded:
        said = " and ".join(t.objective for t in names)
        raise ValueError(
            f"{step.name} minimizes {said} and no rewards, expected a loss that reads rewards or advantages; "
            "kl_companion.audit takes a KL term"
        )
    of_kl, at, off = without_rewards(loss), prompt(0.1), 0.0
    penalty = _penalty(of_kl, group)
    if penalty is None and step.with_beta is not None and step.beta:  # it may need rewards that differ
        of_kl = _difference(step.with_beta(2 * step.beta).loss, step.loss)
        penalty = _penalty(of_kl, group)
    named = penalty is not None
    if penalty is None:
        kl = [t.objective for t in names if OBJECTIVES[t.objective].regularizer]
        off, nearest = min((_turned(of_kl, n, group), n) for n in kl or _FALLBACK)
        penalty = {nearest: 1.0}
    update = expected_update(loss, at, group)
    rests = {r: round(share(update, at.problem, penalty, reward=r).rest, 6) for r in REWARDS}
    reward = min(rests, key=lambda r: rests[r])
    named = named and (bool(names) or rests[reward] < _EXACT)
    return UpdateParts(reward, penalty, named, group, off)


def _turned(part: Loss, name: str, group: int | None) -> float:
    """Return the degrees between the update of a part and the gradient of an objective; NaN without one."""
    at = prompt(0.5)
    try:
        update = expected_update(part, at, group).flatten()
    except ValueError:
        return math.nan
    return multiples(update, {name: field(get_objective(name), at.problem).flatten()})[1]


def _difference(loss: Loss, other: Loss) -> Loss:
    return lambda rollout: loss(rollout) - other(rollout)


def _penalty(rest: Loss, group: int | None) -> dict[str, float] | None:
    """Return what is left where all rewards are 0, {objective: weight}, the first of which is 1.

    {} where nothing is left; None where it is not known.
    """
    try:
        finding = finding_of(rest, _LOOKED, _FIT._replace(group_size=group))
    except ValueError:  # a standard deviation of equal rewards, say
        return None
    if finding.zero:
        return {}
    found = terms(finding)
    if not found:
        return None
    if not any(OBJECTIVES[t.objective].regularizer for t in found):
        return {}
    return {t.objective: t.coefficient / found[0].coefficient for t in found}
