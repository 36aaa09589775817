"""A trainer as a loss of a `Rollout`, for the audits: what its step minimizes, exactly."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kl_companion.auditing.auditor import audit
from kl_companion.auditing.judgment.verdict import Audit
from kl_companion.auditing.updates.audit import audit_update
from kl_companion.auditing.updates.record import UpdateAudit
from kl_companion.monitor.doctor.subject import Examined
from kl_companion.monitor.doctor.world import SmallWorld
from kl_companion.rollout import Rollout

_GROUP = 4  # answers whose groups are enumerated; the limit of large groups is looked at too


def loss_of(subject: Examined) -> Callable[..., torch.Tensor]:
    """Its loss as a function of a rollout with logits: the value, and the gradient that its code computes."""

    def run(rollout: Rollout, beta: float | None = None) -> torch.Tensor:
        world = SmallWorld.of(rollout, subject.ids)
        seen = subject.run(world, beta=beta)
        logits = world.rollout.logits
        assert logits is not None
        return seen.loss + ((logits - logits.detach()) * seen.completion).sum()

    def alone(rollout: Rollout) -> torch.Tensor:
        return run(rollout)

    def with_coefficient(rollout: Rollout, beta: float = subject.declared.beta or 0.0) -> torch.Tensor:
        return run(rollout, beta)

    # the audit reads the coefficient, and sets another one, by the name of a parameter
    loss = with_coefficient if subject.sets_beta and subject.declared.beta else alone
    loss.__name__ = loss.__qualname__ = subject.title
    return loss


def audited(subject: Examined, progress: Callable[[str], None] | None = None) -> UpdateAudit | Audit:
    """The audit of the whole update; of a distillation, which has no rewards, that of its loss.

    Raises:
        ValueError: as `audit_update` and `audit`.
    """
    if not getattr(subject, "runs", True):
        raise ValueError(f"the loss of {subject.title} cannot be run on the small world")
    if subject.declared.teacher:
        return audit(loss_of(subject), off_policy=False, progress=progress)
    return audit_update(loss_of(subject), groups=(_GROUP,), group_size=_GROUP, progress=progress)
