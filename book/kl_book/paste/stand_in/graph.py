"""Reverse-mode differentiation, of first order: which step made a tensor, and the way back.

A step knows what it was made of and a function from the gradient of its result, a list of entries, to those
of its parents. Whether steps are kept is one switch, as in torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kl_book.paste.stand_in.tensor import Tensor

Entries = list[float]
Back = Callable[[Entries], Sequence[Entries | None]]
_SWITCH = [True]
# What the last gradient went through. Were its result to let go of a long chain, each link would let go of
# the next inside itself, and in a browser the stack for that is short.
_HELD: list[Tensor] = []


class GraphStep(NamedTuple):
    """What a tensor was made by."""

    parents: tuple[Tensor, ...]
    back: Back
    name: str


class Switched:
    """A context, or a decorator, in which steps are kept or not."""

    def __init__(self, mode: bool) -> None:
        self.mode, self.before = mode, list[bool]()

    def __enter__(self) -> None:
        self.before.append(_SWITCH[0])
        _SWITCH[0] = self.mode

    def __exit__(self, *error: object) -> None:
        _SWITCH[0] = self.before.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, run inside."""
        context = functools.partial(Switched, self.mode)

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        return inside


def switched(mode: bool) -> Callable[..., Any]:
    """`torch.no_grad` or `torch.enable_grad`, which may be a decorator with or without parentheses."""

    def context(function: Callable[..., Any] | None = None) -> Any:
        return Switched(mode) if function is None or isinstance(function, bool) else Switched(mode)(function)

    return context


def is_grad_enabled() -> bool:
    """Whether steps are kept."""
    return _SWITCH[0]


class Set(Switched):
    """The switch set at once; at the end of a ``with`` it is as it was before."""

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        super().__enter__()

    def __enter__(self) -> None:
        """It is set already."""


def ordered(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All that tensors were made of, each after what it was made of."""
    found, seen, todo = [], set[int](), [(tensor, False) for tensor in tensors]
    while todo:
        at, done = todo.pop()
        if done:
            found.append(at)
        elif id(at) not in seen and at.requires_grad:
            seen.add(id(at))
            todo.append((at, True))
            if at.step is not None:
                todo += [(parent, False) for parent in at.step.parents]
    return found


def gradients(outputs: Sequence[tuple[Tensor, Entries]], wanted: set[int]) -> dict[int, Entries]:
    """The gradients of a sum of tensors, each with the gradient that it starts with, by the id of a tensor.

    Args:
        outputs: The tensors; all of them require gradients.
        wanted: Ids of tensors whose gradients are kept beside those of leaves.
    """
    while _HELD:  # results before what they were made of, each alone
        _HELD.pop()
    found: dict[int, Entries] = {}
    for tensor, start in outputs:
        _grow(found, tensor, start)
    _HELD.extend(ordered([tensor for tensor, _ in outputs]))
    for at in reversed(_HELD):
        g = found.get(id(at))
        if at.step is None or g is None:
            continue
        for parent, part in zip(at.step.parents, at.step.back(g), strict=True):
            if part is not None and parent.requires_grad:
                _grow(found, parent, part)
        if id(at) not in wanted:
            del found[id(at)]
    return found


def _grow(found: dict[int, Entries], tensor: Tensor, part: Entries) -> None:
    known = found.get(id(tensor))
    found[id(tensor)] = part if known is None else list(map(add, known, part))
