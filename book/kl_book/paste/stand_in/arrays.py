"""Rectangular arrays as flat lists, row by row: where the entries of one shape lie in another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

Shape = tuple[int, ...]


def size_of(shape: Sequence[int]) -> int:
    """How many entries an array of a shape has."""
    return math.prod(shape)


@lru_cache(maxsize=4096)
def steps(shape: Shape) -> Shape:
    """How far apart in the list neighbors along every axis are."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= size
    return tuple(reversed(found))


@lru_cache(maxsize=4096)
def together(a: Shape, b: Shape) -> Shape:
    """The shape that two arrays have together, by torch's rules of broadcasting.

    Raises:
        RuntimeError: two sizes differ and neither is 1.
    """
    length = max(len(a), len(b))
    found = []
    for axis in range(-length, 0):
        m, n = (shape[axis] if -axis <= len(shape) else 1 for shape in (a, b))
        if m != n and 1 not in (m, n):
            raise RuntimeError(
                f"The size of tensor a ({m}) must match the size of tensor b ({n}) at non-singleton "
                f"dimension {axis + length}: shapes {list(a)} and {list(b)}"
            )
        found.append(n if m == 1 else m)
    return tuple(found)


@lru_cache(maxsize=4096)
def spread(shape: Shape, wider: Shape) -> tuple[int, ...] | None:
    """For every entry of ``wider`` the place of what is repeated there; None where nothing is repeated.

    Raises:
        RuntimeError: the shape cannot be expanded to this.
    """
    if shape == wider:
        return None
    if len(shape) > len(wider):
        raise RuntimeError(f"expand: shape {list(shape)} has more axes than the wanted {list(wider)}")
    own = (1,) * (len(wider) - len(shape)) + shape
    if any(m not in (1, n) for m, n in zip(own, wider, strict=True)):
        raise RuntimeError(f"expand: shape {list(shape)} does not become {list(wider)}")
    by = tuple(0 if m == 1 else step for m, step in zip(own, steps(own), strict=True))
    return places(wider, by)


@lru_cache(maxsize=4096)
def places(shape: Shape, by: Shape, start: int = 0) -> tuple[int, ...]:
    """Places in a list for all entries of a shape, given the step along every axis."""
    found = [start]
    for size, step in zip(shape, by, strict=True):
        found = [at + i * step for at in found for i in range(size)]
    return tuple(found)


@lru_cache(maxsize=4096)
def lines(shape: Shape, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """For every entry of the other axes, in order, the places of the entries along ``axes``."""
    by = steps(shape)
    along = places(tuple(shape[a] for a in axes), tuple(by[a] for a in axes))
    rest = [a for a in range(len(shape)) if a not in axes]
    starts = places(tuple(shape[a] for a in rest), tuple(by[a] for a in rest))
    return tuple(tuple(start + step for step in along) for start in starts)


def taken(entries: Sequence[Any], shape: Shape, axes: tuple[int, ...]) -> list[list[Any]]:
    """The entries of every line along some axes, see `lines`."""
    if axes == tuple(range(len(shape) - len(axes), len(shape))):
        size = size_of(shape[len(shape) - len(axes) :])
        count = size_of(shape[: len(shape) - len(axes)])
        return [list(entries[i * size : (i + 1) * size]) for i in range(count)]
    return [[entries[i] for i in line] for line in lines(shape, axes)]


def put(parts: Iterable[Sequence[Any]], shape: Shape, axes: tuple[int, ...]) -> list[Any]:
    """The contrary: lines back in their places."""
    if axes == tuple(range(len(shape) - len(axes), len(shape))):
        return [x for part in parts for x in part]
    found: list[Any] = [0.0] * size_of(shape)
    for line, part in zip(lines(shape, axes), parts, strict=True):
        for i, x in zip(line, part, strict=True):
            found[i] = x
    return found


def axis_of(axis: int, count: int) -> int:
    """An axis counted from the front.

    Raises:
        IndexError: there is no such axis.
    """
    most = max(count, 1)
    if not -most <= axis < most:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got {axis})"
        )
    return axis % most


def axes_of(axes: int | Iterable[int] | None, count: int) -> tuple[int, ...]:
    """Axes counted from the front, in order; None (and no axis at all) stands for all."""
    if axes is None:
        return tuple(range(count))
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    found = tuple(sorted(axis_of(a, count) for a in given))
    if len(set(found)) < len(found):
        raise RuntimeError(f"dim {list(given)} names an axis twice")
    return (found if count else ()) if given else tuple(range(count))


def flat(nested: Any) -> tuple[list[Any], Shape]:
    """The entries of nested lists or tuples, and their shape.

    Raises:
        ValueError: lists of different lengths.
    """
    if not isinstance(nested, (list, tuple)):
        return [nested], ()
    parts = [flat(part) for part in nested]
    shapes = {shape for _, shape in parts}
    if len(shapes) > 1:
        raise ValueError(f"nested lists of different shapes: {sorted(map(list, shapes))}")
    entries = [x for part, _ in parts for x in part]
    return entries, (len(parts), *(shapes.pop() if shapes else ()))


def nested(entries: Sequence[Any], shape: Shape) -> Any:
    """The contrary of `flat`."""
    if not shape:
        return entries[0]
    if len(shape) == 1:
        return list(entries)
    step = size_of(shape[1:])
    return [nested(entries[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def corners(shape: Shape) -> Iterable[Shape]:
    """All indices of a shape, in order."""
    return product(*map(range, shape))
