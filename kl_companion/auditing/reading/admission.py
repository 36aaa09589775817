"""The first stage of an audit: read a loss, and refuse one that cannot be audited."""

from __future__ import annotations

from kl_companion.auditing.reading.groups import check_group
from kl_companion.auditing.reading.probing import check_rows
from kl_companion.auditing.reading.repairs import readable
from kl_companion.auditing.reading.request import AuditRequest
from kl_companion.auditing.reading.subject import Subject, probe
from kl_companion.tabular.expectations import check_differentiable


class NoGradient(ValueError):
    """A loss was refused because it has no gradient; ``subject`` is how it was read."""

    def __init__(self, message: str, subject: Subject) -> None:
        super().__init__(message)
        self.subject = subject


def read(request: AuditRequest) -> Subject:
    """Return the loss of a request as a function of a rollout.

    Raises:
        NoGradient: the loss runs and has no gradient.
        ValueError: the loss cannot be read, or needs groups of a size that is not known or too large.
    """
    request.check()
    subject = readable(request)
    if subject.entry is not None:
        return subject
    _check_gradient(subject)
    if request.group_size is None and subject.group is not None:
        options = request.options
        check_group(subject.group, lambda more: subject.with_options({**options, **more}).group)
    elif request.group_size is None and request.problems is None:
        check_rows(subject.loss)
    return subject


def _check_gradient(subject: Subject) -> None:
    """Raise `NoGradient` for a loss without a gradient."""
    try:
        out = subject.loss(probe())
    except ValueError:  # a loss that needs other batches is refused there
        return
    try:
        check_differentiable(out)
    except ValueError as error:
        raise NoGradient(str(error), subject) from None
