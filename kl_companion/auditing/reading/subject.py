"""Make one scalar loss of a rollout out of whatever a reader hands in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.reading.arguments import anchors_apart
from kl_companion.auditing.reading.functions import read_function
from kl_companion.auditing.reading.groups import GroupSize
from kl_companion.auditing.reading.layouts import MASKS
from kl_companion.auditing.reading.probing import Reading, bind
from kl_companion.auditing.reading.probing import probe as probe
from kl_companion.auditing.reading.request import NOTHING as NOTHING
from kl_companion.auditing.reading.request import AuditRequest
from kl_companion.checks import check_choice
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.keywords import renamed
from kl_companion.kl_term import LEVELS, EstimatorLike, KLTerm
from kl_companion.losses import kl_loss, kl_reward, policy_gradient_loss
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss
from kl_companion.tabular.scores import SINGLE_PLACEMENTS

Moved = Callable[..., torch.Tensor]  # of a rollout and, if wanted, of `Others`


class Subject(NamedTuple):
    """What is audited.

    Attributes:
        loss: A scalar function of a rollout.
        title: What it is called in a sentence.
        placement: ``"loss"``, or ``"reward"`` where the value of the loss estimates nothing.
        entry: The estimator that was named; None for a function.
        reading: How a function's parameters were read; None for an estimator.
        head: Of how many likeliest tokens a function is given tensors, or finds them itself; 0 of none.
        numbers: Numbers that stand in a function, such as its temperature.
        masked: Whether a function is told which tokens are the policy's own.
        first_update: The loss where the old policy is the policy itself and another one has sampled; None of
            one that does not read both.
        group: Answers in a group, where a function takes its batch for groups of one size.
        moved: The loss with inputs that can be moved one by one; None where there are none by name.
        request: See `AuditRequest`.
    """

    loss: Loss
    title: str
    placement: str
    entry: Estimator | None
    reading: Reading | None = None
    head: int = 0
    numbers: tuple[float, ...] = ()
    masked: bool = False
    first_update: Loss | None = None
    group: GroupSize | None = None
    moved: Moved | None = None
    request: AuditRequest = AuditRequest()

    def with_options(self, options: Mapping[str, Any]) -> Subject:
        """Read the same loss again, with these options instead of those of the request."""
        return subject_of(self.request._replace(options=options))


@renamed(mapped="roles", settings="options")
def as_loss(
    loss: EstimatorLike | KLTerm | Callable[..., Any],
    placement: str = "loss",
    level: str | None = None,
    *,
    roles: Mapping[str, str] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
) -> Loss:
    """A scalar function of a `Rollout`.

    Args:
        loss: A registered estimator; a `KLTerm`; or a function, a method, a class or a module as it stands in
            a trainer. Its parameters are told apart by their names, see
            `kl_companion.auditing.reading.names`; a function of one batch or of one `Rollout` takes from it
            what it reads. It returns a scalar, one value per token, which is summed over tokens, or one per
            answer, of which the mean is taken; alone, or first in a tuple, or as the ``loss`` of a dict or
            record.
        placement: ``"loss"`` differentiates it; ``"reward"`` subtracts its detached value from the
            reward of a REINFORCE loss. A `KLTerm` says it itself, and `level` too.
        level: ``"token"`` or ``"sequence"``: whether an estimator sees tokens or whole sequences. None
            is tokens in the loss and sums over sequences in the reward.
        roles: What a parameter means, {their name: role}, where its name does not say it.
        options: Values of options, of a class's constructor or of fields of its configuration.

    Raises:
        ValueError: unknown name, placement, level, parameter or setting; as `Unusable`, a loss that does not
            run or returns none; a level for a function that reads more than ``logp`` and ``ref_logp``; a
            placement or level beside a `KLTerm`.
    """
    return as_subject(loss, placement, level, roles=roles, options=options).loss


def as_subject(loss: Any, placement: str = "loss", level: str | None = None, **further: Any) -> Subject:
    """Return the subject of an `AuditRequest` with these fields, see `subject_of`."""
    return subject_of(AuditRequest(loss, placement, level, **further))


def subject_of(request: AuditRequest) -> Subject:
    """Return the loss of a request with what the audit says about it; errors are those of `as_loss`."""
    loss, placement, level = request.loss, request.placement, request.level
    check_choice("placement", placement, SINGLE_PLACEMENTS)
    usual = "token" if placement == "loss" else "sequence"
    check_choice("level", usual if level is None else level, LEVELS)
    title = f" in the {placement}"
    if not isinstance(loss, str | Estimator | KLTerm):
        return _of_function(request, "" if placement == "loss" else title)._replace(request=request)
    if request.roles or request.options:
        raise ValueError(f"{loss} got roles or options, expected none: they are for functions")
    if not isinstance(loss, KLTerm):
        entry = get_estimator(loss)
        placed = _placed(entry, placement, level or usual)
        return Subject(placed, f"{entry.name}{title}", placement, entry, request=request)
    if placement != "loss" or level is not None:
        got = f"got a KLTerm and placement={placement!r}, level={level!r}"
        raise ValueError(f"{got}: expected both in the term")
    return _of_term(loss)._replace(request=request)


def _of_function(request: AuditRequest, where: str) -> Subject:
    """Return the subject of a function, a method, a class or a module."""
    placement, level, signature = request.placement, request.level, read_function(request)
    function, reading = bind(signature)
    plain = Subject(function.scalar, f"{signature.label}{where}", placement, None, reading)
    if level is not None:
        if [r.role for r in reading.reads] != ["logp", "ref_logp"]:
            names = ", ".join(r.name for r in reading.reads) or "a rollout"
            why = "expected one of logp and ref_logp: other functions choose their own level"
            raise ValueError(f"level={level!r} got a function of {names}, {why}")
        return plain._replace(loss=_placed(request.loss, placement, level))
    called = function.in_reward if placement == "reward" else function.scalar
    apart = partial(function.scalar, layout=function.layout._replace(own_old=True))
    return plain._replace(
        loss=called,
        moved=called,
        head=function.head,
        numbers=reading.numbers,
        masked=not MASKS.isdisjoint(r.role for r in reading.reads),
        first_update=apart if placement == "loss" and anchors_apart(reading.reads) else None,
        group=signature.group,
    )


def _placed(estimator: Any, placement: str, level: Any) -> Loss:
    if placement == "loss":
        return lambda rollout: kl_loss(rollout, estimator, level=level, importance=None)
    return lambda rollout: policy_gradient_loss(
        rollout, -kl_reward(rollout, estimator, level=level, credit=None)
    )


def _of_term(term: KLTerm) -> Subject:
    """The term where it says that it is: in the loss, in the reward of a REINFORCE loss, or in both."""

    def loss(rollout: Rollout) -> torch.Tensor:
        charged: Any = 0.0
        if term.charges:
            charged = policy_gradient_loss(rollout, -kl_reward(rollout, term, beta=1.0))
        return kl_loss(rollout, term) + charged if term.differentiates else charged

    special = {"both": "loss and in the reward", "score": "loss by its score"}
    title = f"{term.entry.name} in the {special.get(term.placement, term.placement)}"
    return Subject(loss, title, "loss" if term.placement == "loss" else "reward", term.entry)
