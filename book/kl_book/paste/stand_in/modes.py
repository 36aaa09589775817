"""Function modes: whoever is on top sees every function and method that is called, and may change it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from kl_book.paste.stand_in.repeated import once

_MODES: list[Any] = []


class TorchFunctionMode:
    """A context inside which `__torch_function__` is called in place of every function of tensors."""

    def __enter__(self) -> TorchFunctionMode:
        _MODES.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _MODES.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function as it is."""
        return func(*args, **(kwargs or {}))


class TorchDispatchMode:
    """A mode below functions; there is nothing below them here."""

    def __enter__(self) -> TorchDispatchMode:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Operators:
    """`torch.ops`: names of operators, which nothing here is."""

    def __getattr__(self, name: str) -> Any:
        """A name like no other."""
        if name.startswith("__"):
            raise AttributeError(name)
        found = Operators()
        setattr(self, name, found)
        return found


_ALSO = {"axis": "dim", "keepdims": "keepdim"}  # as NumPy says it, which PyTorch takes too
_TENSORS = ("input", "other")


def seen(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that modes see under a name, and that takes the names of arguments that PyTorch's does."""
    own = set(inspect.signature(function).parameters)

    def called(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = {_ALSO.get(k, k) if k not in own else k: v for k, v in kwargs.items()}
            args += tuple(kwargs.pop(k) for k in _TENSORS if k in kwargs and k not in own)
        if not _MODES:
            return function(*args, **kwargs)
        mode = _MODES.pop()  # inside it calls reach the next one
        try:
            return mode.__torch_function__(called, (), args, kwargs)
        finally:
            _MODES.append(mode)

    called = functools.wraps(function)(once(called, _MODES))
    called.__name__ = name
    return called
