"""Operations that move entries and compute none: views, joins, parts of an axis."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from kl_book.paste.stand_in import elementwise as each
from kl_book.paste.stand_in.arrays import (
    Shape,
    axis_of,
    lines,
    places,
    size_of,
    spread,
    steps,
    together,
)
from kl_book.paste.stand_in.kinds import INT64
from kl_book.paste.stand_in.repeated import rows, stacked
from kl_book.paste.stand_in.row_by_row import by_row, reshaped, rows_at
from kl_book.paste.stand_in.tensor import Tensor, batch, made, sharing, tensor_of

Entries = list[Any]


def moved(x: Tensor, at: Sequence[int], shape: Shape, name: str, *, view: bool = False) -> Tensor:
    """A tensor of the entries of another at some places; ``view``: in torch they share memory."""
    count = len(x.entries)

    def back(g: Entries) -> tuple[Entries]:
        found = [0.0] * count
        for i, a in zip(at, g, strict=True):
            found[i] += a
        return (found,)

    out = made([x.entries[i] for i in at], shape, x.kind, (x,), back, name)
    return sharing(x, out) if view else out


def _as(x: Tensor, shape: Shape, name: str) -> Tensor:
    """The same entries in the same order under another shape."""
    if (found := reshaped(x, shape, lambda rows, size: _as(rows, size, name))) is not None:
        return sharing(x, found)
    return sharing(x, made(x.entries, shape, x.kind, (x,), lambda g: (g,), name))


def _given(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


# -- shapes --------------------------------------------------------------------------------------------------


def reshape(x: Tensor, *sizes: Any) -> Tensor:
    """Another shape; one size may be -1.

    Raises:
        RuntimeError: it has not as many entries.
    """
    shape = [int(n) for n in _given(sizes)]
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and x.numel() % known == 0:
        shape[shape.index(-1)] = x.numel() // known
    if -1 in shape or size_of(shape) != x.numel():
        raise RuntimeError(f"shape '{list(_given(sizes))}' is invalid for input of size {x.numel()}")
    return _as(x, tuple(shape), "view")


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Some neighboring axes as one."""
    first, last = axis_of(start_dim, x.ndim), axis_of(end_dim, x.ndim)
    return reshape(x, (*x.size_[:first], size_of(x.size_[first : last + 1]), *x.size_[last + 1 :]))


def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """One axis as several."""
    axis = axis_of(dim, x.ndim)
    parts = list(sizes)
    if -1 in parts:
        parts[parts.index(-1)] = x.size_[axis] // -math.prod(parts)
    return reshape(x, (*x.size_[:axis], *parts, *x.size_[axis + 1 :]))


def view_as(x: Tensor, other: Tensor) -> Tensor:
    """The shape of another."""
    return reshape(x, other.size_)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """One more axis, of size 1."""
    axis = axis_of(dim, x.ndim + 1)
    return _as(x, (*x.size_[:axis], 1, *x.size_[axis:]), "unsqueeze")


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without axes of size 1."""
    if dim is None:
        chosen = set(range(x.ndim))
    else:
        chosen = {axis_of(a, x.ndim) for a in ((dim,) if isinstance(dim, int) else dim)}
    return _as(x, tuple(n for a, n in enumerate(x.size_) if a not in chosen or n != 1), "squeeze")


def expand(x: Tensor, *sizes: Any) -> Tensor:
    """Axes of size 1 repeated; -1 leaves a size as it is."""
    wanted = _given(sizes)
    own = (1,) * (len(wanted) - x.ndim) + x.size_
    shape = tuple(m if n == -1 else int(n) for m, n in zip(own, wanted, strict=True))
    if x.copies is not None and (len(wanted), *shape[:1]) == (x.ndim, len(x)):
        return sharing(x, batch(expand(x.small, (-1, *shape[1:])), x.copies))
    at = spread(x.size_, shape)
    return _as(x, shape, "expand") if at is None else moved(x, at, shape, "expand", view=True)


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """To the shape of another."""
    return expand(x, other.size_)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All in the shape that they have together."""
    shape: Shape = ()
    for t in tensors:
        shape = together(shape, t.size_)
    return tuple(expand(t, shape) for t in tensors)


def permute(x: Tensor, *dims: Any) -> Tensor:
    """Axes in another order."""
    order = tuple(axis_of(a, x.ndim) for a in _given(dims))
    if sorted(order) != list(range(x.ndim)):
        raise RuntimeError(f"permute(dims): {list(_given(dims))} is no order of the {x.ndim} axes")
    if x.copies is not None and order[0] == 0:
        return sharing(x, batch(permute(x.small, order), x.copies))
    by = steps(x.size_)
    shape = tuple(x.size_[a] for a in order)
    return moved(x, places(shape, tuple(by[a] for a in order)), shape, "permute", view=True)


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged."""
    order = list(range(x.ndim))
    a, b = axis_of(dim0, x.ndim), axis_of(dim1, x.ndim)
    if order:
        order[a], order[b] = b, a
    return permute(x, order)


def movedim(x: Tensor, source: int, destination: int) -> Tensor:
    """One axis elsewhere."""
    order = [a for a in range(x.ndim) if a != axis_of(source, x.ndim)]
    order.insert(axis_of(destination, x.ndim), axis_of(source, x.ndim))
    return permute(x, order)


def flip(x: Tensor, *dims: Any) -> Tensor:
    """Axes from their end."""
    chosen = {axis_of(a, x.ndim) for a in _given(dims)}
    if x.copies is not None and 0 not in chosen:
        return batch(flip(x.small, *chosen), x.copies)
    by = [-s if a in chosen else s for a, s in enumerate(steps(x.size_))]
    start = builtins.sum(
        s * (n - 1) for a, (s, n) in enumerate(zip(steps(x.size_), x.size_, strict=True)) if a in chosen
    )
    return moved(x, places(x.size_, tuple(by), start), x.size_, "flip")


def roll(x: Tensor, shifts: int, dims: int | None = None) -> Tensor:
    """Entries moved along an axis, those at the end to its beginning."""
    if dims is None:
        return reshape(roll(reshape(x, -1), shifts, 0), x.size_)
    n = x.size_[dims]
    order = Tensor([(i - shifts) % n for i in range(n)], (n,), INT64)
    return index_select(x, dims, order)


def repeat(x: Tensor, *sizes: Any) -> Tensor:
    """Copies side by side."""
    counts = _given(sizes)
    own = (1,) * (len(counts) - x.ndim) + x.size_
    found = reshape(x, own)
    for axis, n in enumerate(counts):
        found = cat([found] * n, axis) if n != 1 else found
    return found


def repeat_interleave(x: Tensor, repeats: Any, dim: int | None = None) -> Tensor:
    """Every entry so many times in a row."""
    if dim is None:
        x, dim = reshape(x, -1), 0
    count = x.size_[dim]
    given = tensor_of(repeats).entries
    each_ = list(given) * count if len(given) == 1 else list(given)
    order = [i for i, n in enumerate(each_) for _ in range(n)]
    return index_select(x, dim, Tensor(order, (len(order),), INT64))


# -- several tensors -----------------------------------------------------------------------------------------


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along an axis.

    Raises:
        RuntimeError: another of their sizes differs.
    """
    parts = [t for t in tensors if t.size_ != (0,)] or list(tensors)
    axis, kind = axis_of(dim, parts[0].ndim), max(t.kind for t in parts)
    parts = [t.as_kind(kind) for t in parts]
    rest = {(*t.size_[:axis], *t.size_[axis + 1 :]) for t in parts}
    if len(rest) > 1:
        raise RuntimeError(
            f"Sizes of tensors must match except in dimension {axis}: {[t.shape for t in parts]}"
        )
    if axis and (taken := by_row(parts, ndim=parts[0].ndim)) is not None:
        rows, copies = taken
        return batch(cat(rows, axis), copies)
    sizes = [t.size_[axis] for t in parts]
    shape = (*parts[0].size_[:axis], builtins.sum(sizes), *parts[0].size_[axis + 1 :])
    out: Entries = [0.0] * size_of(shape)
    chosen, start, by = [], 0, steps(shape)
    for t, n in zip(parts, sizes, strict=True):
        at = places(t.size_, by, start * by[axis])
        for i, v in zip(at, t.entries, strict=True):
            out[i] = v
        chosen.append(at)
        start += n

    def back(g: Entries) -> list[Entries]:
        return [[g[i] for i in at] for at in chosen]

    return made(out, shape, kind, tuple(parts), back, "cat")


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    shapes = {t.size_ for t in tensors}
    if len(shapes) != 1:
        raise RuntimeError(f"stack expects each tensor to be equal size, but got {sorted(shapes)}")
    if not axis_of(dim, len(shapes.pop()) + 1):
        found = stacked(tensors, stack)
        if found is not None:
            return found
    return cat([unsqueeze(t, dim) for t in tensors], dim)


def split(x: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts along an axis."""
    n, given = x.size_[dim], split_size_or_sections
    sizes = (
        [builtins.min(given, n - i) for i in range(0, n, given)] if isinstance(given, int) else list(given)
    )
    if builtins.sum(sizes) != n:
        raise RuntimeError(f"split_with_sizes expects sizes that add up to {n}, got {sizes}")
    starts = [builtins.sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(narrow(x, dim, start, size) for start, size in zip(starts, sizes, strict=True))


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """About so many parts of equal size."""
    return split(x, builtins.max(1, -(-x.size_[dim] // chunks)), dim)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The parts along an axis, without it."""
    if x.copies is not None and not axis_of(dim, x.ndim):
        return tuple(rows(x, range(len(x))))
    return tuple(squeeze(part, dim) for part in split(x, 1, dim))


# -- parts of an axis --------------------------------------------------------------------------------------


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A range of an axis."""
    axis, by = axis_of(dim, x.ndim), steps(x.size_)
    if x.copies is not None and axis:
        return sharing(x, batch(narrow(x.small, axis, start, length), x.copies))
    shape = tuple(length if a == axis else n for a, n in enumerate(x.size_))
    if x.copies is not None and length == 1:
        return rows(x, [start], keep=True)[0]
    if x.copies is not None:  # rows of a batch are rows of the few: a loop over answers reads no other
        few = x.copies.which[start : start + length]
        at = [i for r in few for i in range(r * by[0], (r + 1) * by[0])]
        return sharing(x, moved(x.small, at, shape, "narrow"))
    return moved(x, places(shape, by, start * by[axis]), shape, "narrow", view=True)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """One place of an axis."""
    at = within(index, x.size_[dim], "select")
    if x.copies is not None and not axis_of(dim, x.ndim):
        return rows(x, [at])[0]
    return squeeze(narrow(x, dim, at, 1), dim)


def diff(x: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    """Differences of neighbors."""
    for _ in range(n):
        m = x.size_[dim]
        x = each.sub(narrow(x, dim, 1, m - 1), narrow(x, dim, 0, m - 1))
    return x


def within(i: int, n: int, name: str) -> int:
    """An index counted from the front; IndexError for one that is out of bounds."""
    if not -n <= i < n:
        raise IndexError(f"{name}: index {i} is out of bounds for an axis of size {n}")
    return i % n


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Some places of an axis."""
    axis, by = axis_of(dim, x.ndim), steps(x.size_)
    if x.copies is not None and axis:
        return batch(index_select(x.small, axis, index), x.copies)

    def places_of() -> list[int]:
        given, n = index.entries, x.size_[axis]
        if given and builtins.min(given) >= 0 and builtins.max(given) < n:
            return given
        return [within(i, n, "index_select") for i in given]

    if x.ndim and not axis and (found := rows_at(x, index, places_of)) is not None:
        return batch(found[0].clone(), found[1])
    own = places_of()
    shape = tuple(len(own) if a == axis else n for a, n in enumerate(x.size_))
    start = lines(shape, (axis,))
    at: Entries = [0] * size_of(shape)
    rest = places(
        tuple(n for a, n in enumerate(shape) if a != axis), tuple(s for a, s in enumerate(by) if a != axis)
    )
    for line, base in zip(start, rest, strict=True):
        for to, i in zip(line, own, strict=True):
            at[to] = base + i * by[axis]
    return moved(x, at, shape, "index_select")
