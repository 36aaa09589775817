"""Operations on batches of few rows, see `kl_book.paste.stand_in.copies`: once per row, not once per copy.

What treats all rows of a batch alike is taken of its rows; whatever else is asked reads the entries of the
batch, more slowly and with the same result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from kl_book.paste.stand_in.arrays import axis_of, size_of
from kl_book.paste.stand_in.copies import Copies, copies_of
from kl_book.paste.stand_in.kinds import FLOAT64, INT64
from kl_book.paste.stand_in.tensor import Tensor, batch


def entrywise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of tensors that works entry by entry."""

    @functools.wraps(function)
    def apply(*args: Any, **given: Any) -> Tensor:
        taken = by_row(args)
        if taken is None:
            return function(*args, **given)
        rows, copies = taken
        return batch(function(*rows, **given), copies)

    return apply


def along_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a tensor, an axis and more that works on each line along the axis by itself."""

    @functools.wraps(function)
    def apply(x: Tensor, dim: int, *args: Any, **given: Any) -> Any:
        inside = x.ndim and axis_of(dim, x.ndim)
        taken = by_row((x, *args, *given.values()), ndim=x.ndim) if inside else None
        if taken is None:
            return function(x, dim, *args, **given)
        (small, *others), copies = taken
        named = dict(zip(given, others[len(args) :], strict=True))
        found = function(small, dim, *others[: len(args)], **named)
        if isinstance(found, tuple):
            return type(found)(*(batch(part, copies) for part in found))
        return batch(found, copies)

    return apply


def by_row(given: Sequence[Any], ndim: int | None = None) -> tuple[list[Any], Copies] | None:
    """Arguments as what they are for the rows of a batch; None where one differs between copies of a row.

    Args:
        given: Tensors and others.
        ndim: Axes of a batch that was made in another way; None: all are broadcast to the most of them.
    """
    copies = next((a.copies for a in given if isinstance(a, Tensor) and a.copies is not None), None)
    if copies is None:
        return None
    most = max(a.ndim for a in given if isinstance(a, Tensor)) if ndim is None else ndim
    found: list[Any] = []
    for a in given:
        if not isinstance(a, Tensor):
            found.append(a)
        elif a.copies is not None:
            found.append(a.small if a.copies is copies and (ndim is not None or a.ndim == most) else None)
        elif ndim is None and (a.ndim < most or a.size_[0] == 1):  # the same for every row
            found.append(a)
        else:
            found.append(repacked(a, copies) if a.ndim == most else None)
        if isinstance(a, Tensor) and found[-1] is None:
            return None
    return found, copies


def repacked(x: Tensor, copies: Copies) -> Tensor | None:
    """The rows of a batch that was made in another way; None where copies of a row differ."""
    if x.requires_grad or not x.ndim or x.size_[0] != len(copies):
        return None
    size = size_of(x.size_[1:])
    rows: dict[int, list[Any]] = {}
    for at, i in enumerate(copies.which):
        row = x.entries[at * size : (at + 1) * size]
        if rows.setdefault(i, row) != row:
            return None
    entries = [v for i in range(copies.rows) for v in rows[i]]
    return Tensor(entries, (copies.rows, *x.size_[1:]), x.kind)


def weighted(x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a batch, and how often each is there, to be multiplied with them."""
    assert x.copies is not None
    kind = x.kind if x.kind is INT64 else FLOAT64
    counts = x.copies.counts if kind is INT64 else list(map(float, x.copies.counts))
    return x.small, Tensor(counts, (x.copies.rows, *[1] * (x.ndim - 1)), kind)


def reshaped(x: Tensor, shape: tuple[int, ...], apply: Callable[[Tensor, Any], Tensor]) -> Tensor | None:
    """A batch under a shape whose first axis counts its rows, or parts of them; else None."""
    copies, n = x.copies, shape[0] if shape else 0
    if copies is None or not n:
        return None
    if n % len(copies) == 0:
        parts = n // len(copies)
        return batch(apply(x.small, (copies.rows * parts, *shape[1:])), copies.in_parts(parts))
    if copies.whole is not None and n == len(copies.whole):
        return batch(apply(x.small, (copies.whole.rows, *shape[1:])), copies.whole)
    return None


def picked(x: Tensor, mask: Tensor, get: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """x[mask] of batches of the same rows; None where no row is repeated in it."""
    assert x.copies is not None
    size, places, found = size_of(mask.size_[1:]), list[range](), 0
    for i in range(x.copies.rows):
        count = mask.small.entries[i * size : (i + 1) * size].count(True)
        places.append(range(found, found + count))
        found += count
    finer = copies_of(tuple(chain.from_iterable(places[i] for i in x.copies.which)), found)
    return None if finer is None else batch(get(x.small, mask.small), finer)


def rows_at(x: Tensor, index: Tensor, places: Callable[[], list[int]]) -> tuple[Tensor, Copies] | None:
    """x[index] as a batch: its rows, and which is where; None where none is repeated, or one left out.

    ``places`` gives the index counted from the front; it is asked once for an index and all that it is of.
    """
    small = x if x.small is None else x.small
    of = len(x) if x.copies is None else x.copies
    if index.taken is None or index.taken[:2] != (index._version, of):
        own = places()
        which = tuple(own if x.copies is None else [x.copies.which[i] for i in own])
        index.taken = index._version, of, copies_of(which, len(small))
    copies = index.taken[2]
    return None if copies is None else (small, copies)
