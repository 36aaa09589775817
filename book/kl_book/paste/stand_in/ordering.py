"""Largest and smallest entries with their places, and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kl_book.paste.stand_in import elementwise as each
from kl_book.paste.stand_in.arrays import axis_of, lines, size_of
from kl_book.paste.stand_in.kinds import INT64
from kl_book.paste.stand_in.reductions import LARGEST, SMALLEST, first, reduced, shared
from kl_book.paste.stand_in.row_by_row import along_axis
from kl_book.paste.stand_in.shaping import moved
from kl_book.paste.stand_in.tensor import Tensor

Entries = list[Any]


class Found(NamedTuple):
    """Entries and where they were."""

    values: Tensor
    indices: Tensor


def _extreme(choose: Callable[[Entries], Any], pair: Callable[..., Tensor], name: str) -> Callable[..., Any]:
    def apply(x: Tensor, dim: Any = None, keepdim: bool = False, **given: Any) -> Any:
        other = given.get("other", dim if isinstance(dim, Tensor) else None)
        if other is not None:
            return pair(x, other)
        if dim is None:
            return reduced(x, None, False, choose, shared, name)
        at = reduced(x, dim, keepdim, lambda line: first(line, choose(line)), None, name, INT64)
        return Found(_at(x, axis_of(dim, x.ndim), at), at)

    return apply


@along_axis
def _at(x: Tensor, axis: int, at: Tensor) -> Tensor:
    """The entries of every line at one place, which take the whole gradient."""
    of = lines(x.size_, (axis,) if x.ndim else ())
    from_ = [line[i] for line, i in zip(of, at.entries, strict=True)]
    return moved(x, from_, at.size_, "at")


max_ = _extreme(LARGEST, each.maximum, "max")
min_ = _extreme(SMALLEST, each.minimum, "min")


@along_axis
def _ranked(x: Tensor, dim: int, descending: bool, count: int | None) -> Found:
    axis = axis_of(dim, x.ndim)
    of = lines(x.size_, (axis,) if x.ndim else ())
    order = []
    for line in of:
        keys = [(_down if descending else _up)(x.entries[i]) for i in line]
        order.append(sorted(range(len(line)), key=keys.__getitem__)[:count])
    size = x.size_[axis] if count is None else count
    shape = tuple(size if a == axis else n for a, n in enumerate(x.size_))
    into = lines(shape, (axis,) if x.ndim else ())
    places: Entries = [0] * size_of(shape)
    indices: Entries = list(places)
    for line, target, ranked in zip(of, into, order, strict=True):
        for to, i in zip(target, ranked, strict=True):
            places[to], indices[to] = line[i], i
    return Found(moved(x, places, shape, "sort"), Tensor(indices, shape, INT64))


def _up(v: Any) -> tuple[bool, Any]:
    return (v != v, 0 if v != v else v)


def _down(v: Any) -> tuple[bool, Any]:
    return (v == v, 0 if v != v else -v)


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Found:
    """Entries in order, equal ones as they were."""
    return _ranked(x, dim, descending, None)


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Where they were."""
    return sort(x, dim, descending).indices


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, **_: Any) -> Found:
    """The k largest entries; among equal ones the first."""
    if not 0 <= k <= (x.size_[dim] if x.ndim else 1):
        raise RuntimeError("selected index k out of range")
    return _ranked(x, dim, largest, k)
