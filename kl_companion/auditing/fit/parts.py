"""What is known of a loss that is no known objective: its parts, and the objectives that they are near."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.fit.least_squares import ZERO, degrees
from kl_companion.auditing.fit.observations import Looked
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss

KL, REWARDS, WHOLE = "Its KL part", "Its part of the rewards", "Its gradient"
UNREWARDED, LARGE = "Where all rewards are 0 it", "In large batches it"
_SAME = 1e-9  # of gradients, relatively: rounding


class Near(NamedTuple):
    """The named objective whose gradient has the smallest angle to another one; of rewards that of E[R].

    Attributes:
        objective: Its name.
        sign: 1 where it is minimized, -1 where it is maximized.
        least: The angle in degrees on the world where it is smallest.
        most: On the world where it is largest.
    """

    objective: str
    sign: int
    least: float
    most: float


class Piece(NamedTuple):
    """A part of a loss.

    Attributes:
        subject: One of `KL`, `REWARDS`, `WHOLE`, `UNREWARDED` and `LARGE`: the subject of a sentence.
        finding: What it minimizes.
        near: What it is near, where that is no known objective.
    """

    subject: str
    finding: Finding
    near: Near | None


def parts(
    loss_fn: Loss,
    look: Callable[[Loss], Looked],
    explain: Callable[[Looked], Finding],
    in_large_batches: Callable[[], Finding] | None,
) -> tuple[Piece, ...]:
    """Return what is known of a loss that is no known objective.

    Where the gradient is a sum of what is left without rewards and of a part that does not depend on the
    reference, each is looked at by itself.

    Args:
        loss_fn: The loss.
        look: Evaluates a loss on the worlds of one condition.
        explain: Looks for the objectives that a loss is on them.
        in_large_batches: Audits the loss in large batches, where it was looked at in small groups.
    """
    found, whole = list[Piece](), look(loss_fn)
    kl = rewards = None
    with suppress(ValueError):  # a standard deviation of equal rewards, say
        kl = look(without_rewards(loss_fn))
        rewards = _rewards_apart(loss_fn, look, whole, kl)
    if kl is not None and rewards is not None:
        subject = UNREWARDED if all(w.zero for w in kl.worlds) else KL
        found = [_piece(subject, kl, explain(kl)), _piece(REWARDS, rewards, explain(rewards))]
    else:
        found = [] if kl is None else [Piece(UNREWARDED, explain(kl), None)]
        found.append(_piece(WHOLE, whole, explain(whole)))
    with suppress(ValueError):  # a loss that wants groups of one size
        if in_large_batches is not None:
            found.append(Piece(LARGE, in_large_batches(), None))
    return tuple(x for x in found if x.near or x.finding.matches or x.finding.zero)


def without_rewards(loss_fn: Loss) -> Loss:
    """Return the loss of a batch whose rewards are all 0."""
    return lambda rollout: loss_fn(replace(rollout, rewards=torch.zeros_like(rollout.logp[:, 0]).detach()))


def _with_other_reference(loss_fn: Loss) -> Loss:
    def loss(rollout: Rollout) -> torch.Tensor:
        assert rollout.ref_logits is not None
        other = rollout.ref_logits.flip(-1)
        logp = other.log_softmax(-1).gather(-1, rollout.tokens.unsqueeze(-1)).squeeze(-1)
        return loss_fn(replace(rollout, ref_logits=other, ref_logp=logp))

    return loss


def _rewards_apart(loss_fn: Loss, look: Callable[[Loss], Looked], whole: Looked, kl: Looked) -> Looked | None:
    """Return the part of the rewards where it is the same for every reference; None where there is none."""
    other = _with_other_reference(loss_fn)
    pairs = zip(whole.worlds, kl.worlds, look(other).worlds, look(without_rewards(other)).worlds, strict=True)
    found = []
    for a, b, c, d in pairs:
        rewards, elsewhere = a.gradient - b.gradient, c.gradient - d.gradient
        size = max(x.gradient.norm().item() for x in (a, b, c, d))
        if rewards.norm() <= _SAME * size or (rewards - elsewhere).norm() > _SAME * size:
            return None
        found.append(a._replace(gradient=rewards))
    return whole._replace(worlds=tuple(found))


def _may_be(subject: str, objective: str) -> bool:
    """Whether a part is compared with an objective: of rewards with E[R], of the KL with distances."""
    distance = OBJECTIVES[objective].regularizer and not objective.endswith("_mass")
    return {REWARDS: objective == "expected_reward", KL: distance}.get(subject, True)


def _piece(subject: str, looked: Looked, finding: Finding) -> Piece:
    """Return a part with the objective that is nearest on all worlds, if it is no known one."""
    if finding.matches or finding.zero or not looked.settles:
        return Piece(subject, finding, None)
    near = []
    for name in looked.worlds[0].fields:
        fields = [w.fields[name] for w in looked.worlds]
        if not _may_be(subject, name) or any(f.norm() <= ZERO for f in fields):
            continue
        turned = [degrees(w.gradient, f) for w, f in zip(looked.worlds, fields, strict=True) if not w.zero]
        near += [Near(name, 1, min(turned), max(turned))]
        near += [Near(name, -1, 180 - max(turned), 180 - min(turned))]
    return Piece(subject, finding, min(near, key=lambda x: x.most) if near else None)
