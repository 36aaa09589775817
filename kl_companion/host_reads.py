"""Reads of values on the host: a GPU finishes all the work in its queue before each one.

A function with many checks and many results reads once: checks collect flags (`collecting`), results stay on
the device, and `to_host` copies all of them together. Where a flag is true the caller computes everything
again without collecting, so that the error of the first check names the value and its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch

Structure = TypeVar("Structure")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_COLLECTED: ContextVar[list[torch.Tensor] | None] = ContextVar("flags to be read later", default=None)


@contextmanager
def collecting() -> Iterator[list[torch.Tensor]]:
    """Yield the list to which checks of values add their flags, bool without axes, instead of reading them.

    Inside, functions go on with wrong values: indices must be clamped, or a GPU's process ends.
    """
    flags: list[torch.Tensor] = []
    token = _COLLECTED.set(flags)
    try:
        yield flags
    finally:
        _COLLECTED.reset(token)


def collected(wrong: torch.Tensor) -> bool:
    """Add whether any entry of ``wrong`` is true to the flags, and return whether they are collected."""
    flags = _COLLECTED.get()
    if flags is None:
        return False
    flags.append(wrong.any())
    return True


def any_wrong(wrong: torch.Tensor) -> bool:
    """Return whether any entry of ``wrong`` is true; False where the flag is collected."""
    return not collected(wrong) and bool(wrong.any())


def any_of(flags: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether any of the flags is true, a tensor without axes on the device of the first one."""
    if not flags:
        return torch.tensor(False)
    return torch.stack([flag.to(flags[0].device) for flag in flags]).any()


def explained(function: Callable[[], object]) -> NoReturn:
    """Call a function whose flags said that a value is wrong again, for the error that names it."""
    function()
    raise RuntimeError(
        "a value was wrong, and right when it was computed again: expected the same numbers twice"
    )


def reads_once(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let the checks of a function collect flags, and read them together once it has its result."""

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with collecting() as flags:
            result = function(*args, **kwargs)
        if any_wrong(any_of(flags)):
            explained(lambda: function(*args, **kwargs))
        return result

    return checked


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return detached tensors on the CPU, by one read for all that are on one other device.

    Args:
        tensors: Any shapes and dtypes; those on the CPU are returned as they are.
    """
    away = [x.detach() for x in tensors if x.device.type != "cpu"]
    if len(away) < 2:
        return [x.detach().cpu() for x in tensors]
    packed = torch.cat([_as_integers(x) for x in away]).cpu().split([x.numel() for x in away])
    copies = (_from_integers(bits, x) for bits, x in zip(packed, away, strict=True))
    return [x.detach() if x.device.type == "cpu" else next(copies) for x in tensors]


def on_host(structure: Structure) -> Structure:
    """Return tuples, named ones too, and lists with every tensor in them on the CPU, by one read."""
    tensors: list[torch.Tensor] = []
    _walk(structure, tensors.append)
    copies = iter(to_host(tensors))
    copied: Structure = _walk(structure, lambda x: next(copies))
    return copied


def _walk(x: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(x, torch.Tensor):
        return fn(x)
    if isinstance(x, (tuple, list)):
        parts = [_walk(part, fn) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x


def _bits(dtype: torch.dtype) -> torch.dtype:
    """Return the integers that are as wide as a floating dtype; another dtype is its own."""
    widths = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return widths[dtype.itemsize] if dtype.is_floating_point else dtype


def _as_integers(x: torch.Tensor) -> torch.Tensor:
    """Return the entries, or the bits of floats, as int64 [entries]: no device needs float64 for that."""
    return x.contiguous().view(_bits(x.dtype)).flatten().long()


def _from_integers(bits: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return bits.to(_bits(like.dtype)).view(like.dtype).view(like.shape)
