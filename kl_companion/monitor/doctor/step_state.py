"""The state that a step keeps between its calls, put back before each experiment.

An adaptive coefficient, a counter or a running mean lives in a global variable, in a closure, or in an object
whose method the step is. An experiment compares runs that differ in one thing, so each starts from the same
state; chance starts from the same seed.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

_FIXED = (ModuleType, FunctionType, MethodType, type, torch.nn.Module, str, bytes)


class _Place(NamedTuple):
    """A variable of the user's."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


class StepState:
    """The variables that a step may change, as they were when this was made.

    Args:
        step: A function, a method, or an object that is called.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._places = list(_places(step))
        self._held = [place.read() for place in self._places]
        self._before = self._copied()
        self.names = tuple(place.name for place in self._places)

    def keep(self) -> None:
        """Take the state as it is now for the one that experiments start from."""
        self._held = [place.read() for place in self._places]
        self._before = self._copied()

    def restore(self) -> None:
        """Put the variables back, in the same objects where those can be filled again."""
        fresh = _deep_copies(self._before)
        for place, held, value in zip(self._places, self._held, fresh, strict=True):
            if value is not held and not _filled(held, value):
                held = value
            if place.read() is not held:
                place.write(held)

    def changed(self) -> tuple[str, ...]:
        """Return the names of variables that are not as they were."""
        pairs = zip(self._places, self._before, strict=True)
        return tuple(place.name for place, before in pairs if not _equal(place.read(), before))

    def holds_module(self, lacking: bool) -> bool:
        """Return whether a variable that was empty holds a model now, such as a frozen copy."""
        return lacking and any(
            isinstance(place.read(), torch.nn.Module) and not isinstance(held, torch.nn.Module)
            for place, held in zip(self._places, self._held, strict=True)
        )

    def _copied(self) -> list[Any]:
        return _deep_copies(self._held)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let chance begin from a seed inside, and from where it was afterwards."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _places(step: Callable[..., Any]) -> Iterator[_Place]:
    """The variables of a step and of the functions of its file that it calls."""
    if not isinstance(step, FunctionType | MethodType):
        yield from _entries(vars(step) if hasattr(step, "__dict__") else {}, "self.")
    owner = getattr(step, "__self__", None)
    if owner is not None and not isinstance(owner, _FIXED):
        yield from _entries(vars(owner) if hasattr(owner, "__dict__") else {}, "self.")
    first: Any = step if isinstance(step, FunctionType | MethodType) else type(step).__call__
    first = getattr(first, "__func__", first)
    space: dict[str, Any] = getattr(first, "__globals__", {})
    names: dict[str, None] = {}
    for f in _functions(first):
        names |= dict.fromkeys(name for name in _names_of(f.__code__) if name in space)
        for cell, name in zip(f.__closure__ or (), f.__code__.co_freevars, strict=True):
            if not isinstance(_content(cell), _FIXED):
                yield _Place(name, partial(_content, cell), partial(setattr, cell, "cell_contents"))
        yield from _entries(vars(f), f"{f.__name__}.")
        for value in f.__defaults__ or ():
            if isinstance(value, dict | list | set):
                yield _Place(f"a default of {f.__name__}", partial(_identity, value), _identity)
    yield from _entries(space, "", names)


def _functions(first: Any) -> list[FunctionType]:
    """Return a function and those of its file that it refers to, in a global variable or in a closure."""
    todo, functions = [first], dict[int, FunctionType]()
    while todo:
        f = todo.pop()
        if isinstance(f, FunctionType) and id(f) not in functions and f.__module__ == first.__module__:
            functions[id(f)] = f
            todo += [f.__globals__[name] for name in _names_of(f.__code__) if name in f.__globals__]
            todo += [_content(cell) for cell in f.__closure__ or ()]
    return list(functions.values())


def _entries(space: dict[str, Any], prefix: str, names: Iterable[str] | None = None) -> Iterator[_Place]:
    """The variables of a namespace that can change: no modules, functions, classes, models or texts."""
    for name in list(space) if names is None else names:
        if not isinstance(space[name], _FIXED):
            yield _Place(f"{prefix}{name}", partial(space.get, name), partial(space.__setitem__, name))


def _content(cell: Any) -> Any:
    """Return what a cell holds; None for one that is empty yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _identity(value: Any) -> Any:
    return value


def _names_of(code: CodeType) -> Iterator[str]:
    """Global names and attributes that a function and those inside it mention."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _deep_copies(values: list[Any]) -> list[Any]:
    """Copies that share what the originals share; modules, parameters and what cannot be copied stay."""
    memo: dict[Any, Any] = {}
    kinds: tuple[type, ...] = (torch.nn.Module, torch.nn.Parameter)
    stock = [kind.__dict__.get("__deepcopy__") for kind in kinds]
    for kind in kinds:
        setattr(kind, "__deepcopy__", lambda self, _: self)  # noqa: B010 (a method, to mypy)
    try:
        return [_deep_copy(value, memo) for value in values]
    finally:
        for kind, method in zip(kinds, stock, strict=True):
            if method is None:
                delattr(kind, "__deepcopy__")
            else:
                setattr(kind, "__deepcopy__", method)  # noqa: B010


def _deep_copy(value: Any, memo: dict[Any, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # a lock, a generator, a tensor with a graph: it stays what it is
        return value


def _filled(held: Any, value: Any) -> bool:
    """Whether an object has been given the content of another one of its type."""
    if type(held) is not type(value):
        return False
    if isinstance(held, dict):
        held.clear()
        held.update(value)
    elif isinstance(held, list):
        held[:] = value
    elif hasattr(held, "__dict__") and not isinstance(held, torch.Tensor):
        vars(held).clear()
        vars(held).update(vars(value))
    else:
        return False
    return True


def _equal(a: Any, b: Any) -> bool:
    """Whether two values are equal, tensors included, as far as that can be told."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if hasattr(a, "__dict__") and type(a).__eq__ is object.__eq__:
        return _equal(vars(a), vars(b))
    try:
        return bool(a == b)
    except Exception:  # an array, or a type whose comparison fails: nothing is said about it
        return True
