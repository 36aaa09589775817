"""The decorator that says what a loss minimizes; it loads neither torch nor pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kl_companion.keywords import renamed

MARK = "_kl_companion_minimizes"
AnyLoss = TypeVar("AnyLoss", bound=Callable[..., Any])


@dataclass(frozen=True)
class Expected:
    """What a loss is expected to minimize, and how it is to be read.

    Attributes:
        want: A divergence or objective, as `kl_companion.audit` takes it; of an update what
            `kl_companion.audit_update` takes.
        stale: Whether samples of an older policy judge; None looks at both and lets fresh ones judge.
        arguments: Further arguments of `kl_companion.audit`, or of `kl_companion.audit_update`.
        update: Whether it is a whole update, with rewards.
    """

    want: str
    stale: bool | None = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    update: bool = False

    @property
    def title(self) -> str:
        """The objective, and that samples are stale."""
        return f"{self.want}-stale" if self.stale else self.want


@renamed(map="roles", set="options")
def minimizes(
    want: str,
    *,
    stale: bool | None = False,
    roles: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Callable[[AnyLoss], AnyLoss]:
    """A decorator: pytest checks that the loss minimizes this. The loss itself is returned untouched.

    A loss may have several, one line each: of other settings, or of fresh and of stale samples.

    Args:
        want: A divergence (``"reverse_kl"``, at either level) or an objective (``"token_reverse_kl"``).
        stale: Judge by samples of an older policy. None judges by fresh ones and shows both.
        roles: What parameters mean, ``{"x_logps": "ref_logp"}``, where their names do not say it.
        options: Values of options.
        **arguments: Further arguments of `kl_companion.audit`, such as ``scale=1.0`` for small ratios alone.

    Raises:
        ValueError: ``want`` is no text; what is decorated takes no attribute.
    """
    if not isinstance(want, str):
        raise ValueError(f"want is {want!r}, expected a text: the name of a divergence or objective")
    return _expecting(Expected(want, stale, {**_given(roles, options), **arguments}), "minimizes")


@renamed(map="roles", set="options")
def maximizes(
    want: str,
    *,
    roles: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Callable[[AnyLoss], AnyLoss]:
    """A decorator: pytest checks what a whole update maximizes, with rewards and KL. The loss is untouched.

    Args:
        want: ``"E[R] - 0.04 * sequence_reverse_kl"``; ``beta`` in place of the number is the loss's own.
        roles: What parameters mean, where their names do not say it.
        options: Values of options.
        **arguments: Further arguments of `kl_companion.audit_update`: ``group_size``, ``advantage``.

    Raises:
        ValueError: ``want`` is no text; what is decorated takes no attribute.
    """
    if not isinstance(want, str):
        raise ValueError(f"want is {want!r}, expected a text such as 'E[R] - beta * sequence_reverse_kl'")
    return _expecting(Expected(want, None, {**_given(roles, options), **arguments}, update=True), "maximizes")


def _given(roles: Mapping[str, str] | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        name: dict(value) for name, value in (("roles", roles), ("options", options)) if value is not None
    }


def _expecting(expected: Expected, decorator: str) -> Callable[[AnyLoss], AnyLoss]:
    def decorated(loss: AnyLoss) -> AnyLoss:
        try:
            setattr(loss, MARK, (*expectations(loss), expected))
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"{decorator}({expected.want!r}) got {loss!r}, expected a function or a class of a file: "
                "of what else there is, nothing can be remembered; the fixture kl_audit takes it"
            ) from error
        return loss

    return decorated


def expectations(loss: object) -> tuple[Expected, ...]:
    """What `minimizes` has said of a loss, from the outermost line to the innermost; else nothing."""
    own = getattr(loss, "__dict__", None)  # not inherited, and not made up by an object that has every name
    found = own.get(MARK, ()) if isinstance(own, Mapping) else ()
    return found if isinstance(found, tuple) else ()
