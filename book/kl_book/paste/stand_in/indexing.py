"""Choices by index: gather and scatter, masks, brackets and what is written through them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from kl_book.paste.stand_in import choices
from kl_book.paste.stand_in import elementwise as each
from kl_book.paste.stand_in.arrays import Shape, axis_of, places, size_of, steps, together
from kl_book.paste.stand_in.factories import tensor
from kl_book.paste.stand_in.in_place import overwrite
from kl_book.paste.stand_in.kinds import BOOL, INT64
from kl_book.paste.stand_in.row_by_row import along_axis, picked, weighted
from kl_book.paste.stand_in.shaping import (
    broadcast_tensors,
    expand,
    index_select,
    moved,
    narrow,
    reshape,
    select,
    squeeze,
    within,
)
from kl_book.paste.stand_in.tensor import NotInPage, Tensor, batch, made, sharing, tensor_of

Entries = list[Any]


def _along(x: Tensor, dim: int, index: Tensor, name: str) -> list[int]:
    """The places in ``x`` that gather reads and scatter writes for every entry of an index."""
    if index.kind is not INT64:
        raise RuntimeError(f"{name}(): Expected dtype int64 for index")
    if index.ndim != x.ndim:
        raise RuntimeError(
            f"{name}: Index tensor must have the same number of dimensions as input tensor, got "
            f"{list(index.size_)} and {list(x.size_)}"
        )
    if not x.ndim:
        return [0] * len(index.entries)
    axis, by = axis_of(dim, x.ndim), steps(x.size_)
    if any(m > n for a, (m, n) in enumerate(zip(index.size_, x.size_, strict=True)) if a != axis):
        raise RuntimeError(f"{name}: Size does not match, index {list(index.size_)}, input {list(x.size_)}")
    start = places(index.size_, tuple(0 if a == axis else s for a, s in enumerate(by)))
    n = x.size_[axis]
    for i in index.entries:
        if not 0 <= i < n:
            raise RuntimeError(f"index {i} is out of bounds for dimension {axis} with size {n}")
    return [s + i * by[axis] for s, i in zip(start, index.entries, strict=True)]


@along_axis
def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Entries by their index along an axis."""
    return moved(x, _along(x, dim, index, "gather"), index.size_, "gather")


def take_along_dim(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """The same."""
    return gather(x, dim, index)


def _put(x: Tensor, at: Sequence[int], src: Any, name: str, *, added: bool = False) -> Tensor:
    """A copy with other entries at some places, or with them added there."""
    src = tensor_of(src).as_kind(x.kind)
    values = src.entries * len(at) if src.size_ == () else src.entries
    out = list(x.entries)
    for i, v in zip(at, values, strict=True):
        out[i] = out[i] + v if added else v

    def back(g: Entries) -> tuple[Entries, Entries]:
        mine = list(g)
        if not added:
            for i in at:
                mine[i] = 0.0
        theirs = [g[i] for i in at]
        return mine, [builtins.sum(theirs)] if src.size_ == () else theirs

    return made(out, x.size_, x.kind, (x, src), back, name)


def _sources(src: Any, index: Tensor) -> Any:
    """The entries of a source that belong to an index, which may be smaller."""
    if not isinstance(src, Tensor) or src.size_ in ((), index.size_):
        return src
    return moved(src, places(index.size_, steps(src.size_)), index.size_, "source")


@along_axis
def scatter(x: Tensor, dim: int, index: Tensor, src: Any = None, **given: Any) -> Tensor:
    """A copy with entries put by their index along an axis."""
    src = given.get("value", src)
    return _put(x, _along(x, dim, index, "scatter"), _sources(src, index), "scatter")


@along_axis
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """The same, added."""
    return _put(x, _along(x, dim, index, "scatter_add"), _sources(src, index), "scatter_add", added=True)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """A copy with parts added at some places of an axis."""
    if index.copies is not None and index.copies is source.copies and not axis_of(dim, x.ndim):
        source, index = each.mul(*weighted(source)), index.small
    wide = reshape(index, tuple(-1 if a == axis_of(dim, x.ndim) else 1 for a in range(x.ndim)))
    source = source if alpha == 1 else each.mul(source, alpha)
    return scatter_add(x, dim, expand(wide, source.size_), source)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The entries where a mask holds, in a row."""
    x, mask = broadcast_tensors(x, mask)
    if x.copies is not None and x.copies is mask.copies:
        return get(x, mask)
    at = [i for i, m in enumerate(mask.entries) if m]
    return moved(x, at, (len(at),), "masked_select")


def unique(x: Tensor, *, dim: int | None = None, **_: Any) -> Tensor:
    """The different entries in order, or the different parts along the first axis."""
    if dim not in (None, 0):
        raise NotInPage(f"torch.unique with dim={dim}")
    step = 1 if dim is None else size_of(x.size_[1:])
    parts = sorted({tuple(x.entries[i : i + step]) for i in range(0, len(x.entries), step)})
    shape = (len(parts),) if dim is None else (len(parts), *x.size_[1:])
    return Tensor([v for part in parts for v in part], shape, x.kind)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """0 below a diagonal."""
    rows, columns = x.size_[-2:]
    keep = [j - i >= diagonal for i in range(rows) for j in range(columns)]
    return choices.where(Tensor(keep, (rows, columns), BOOL), x, Tensor([0], (), INT64).as_kind(x.kind))


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """0 above a diagonal."""
    rows, columns = x.size_[-2:]
    keep = [j - i <= diagonal for i in range(rows) for j in range(columns)]
    return choices.where(Tensor(keep, (rows, columns), BOOL), x, Tensor([0], (), INT64).as_kind(x.kind))


# -- brackets ------------------------------------------------------------------------------------------------


def _whole(key: Any, x: Tensor) -> list[Any]:
    """A key per axis: no ellipsis, no masks, slices to the end."""
    keys = list(key) if isinstance(key, tuple) else [key]
    found: list[Any] = []
    for k in keys:
        if isinstance(k, list):
            k = tensor(k)
        if isinstance(k, Tensor) and k.kind is BOOL:
            found += choices.nonzero(k, as_tuple=True)
        else:
            found.append(k)
    used = builtins.sum(k is not None and k is not Ellipsis for k in found)
    if used > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
    if not any(k is Ellipsis for k in found):
        found.append(Ellipsis)
    at = next(i for i, k in enumerate(found) if k is Ellipsis)
    return [*found[:at], *[slice(None)] * (x.ndim - used), *found[at + 1 :]]


def _places(x: Tensor, key: Any) -> tuple[Sequence[int], Shape, bool]:
    """Where the entries of x[key] are, its shape, and whether it is a view."""
    keys, by = _whole(key, x), steps(x.size_)
    shape: list[int] = []
    step: list[int] = []
    start, axis, front = 0, 0, -1
    picked: list[tuple[Tensor, int, int]] = []
    for position, k in enumerate(keys):
        if k is None:
            shape.append(1)
            step.append(0)
            continue
        n = x.size_[axis]
        if isinstance(k, slice):
            own = range(*k.indices(n))
            start += own.start * by[axis] if len(own) else 0
            shape.append(len(own))
            step.append(own.step * by[axis])
        elif isinstance(k, Tensor) and k.size_ != ():
            if picked and position - picked[-1][2] > 1:
                raise NotInPage("indexing with tensors that a slice separates")
            front = len(shape) if not picked else front
            picked.append((k, axis, position))
        else:
            start += within(int(k), n, "indexing") * by[axis]
        axis += 1
    if not picked:
        return places(tuple(shape), tuple(step), start), tuple(shape), True
    chosen: Shape = ()
    for k, _, _ in picked:
        chosen = together(chosen, k.size_)
    offsets = [0] * size_of(chosen)
    for k, a, _ in picked:
        wide = each.wide(k, chosen)
        offsets = [o + within(i, x.size_[a], "indexing") * by[a] for o, i in zip(offsets, wide, strict=True)]
    before = places(tuple(shape[:front]), tuple(step[:front]), start)
    after = places(tuple(shape[front:]), tuple(step[front:]))
    at = [b + o + c for b in before for o in offsets for c in after]
    return at, (*shape[:front], *chosen, *shape[front:]), False


def _keeps_rows(key: Any, x: Tensor) -> bool:
    """Whether a key takes the same of every row of a batch."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(isinstance(k, list) or (isinstance(k, Tensor) and k.size_ != ()) for k in keys):
        return False
    first = keys[0] if keys else None
    used = builtins.sum(k is not None and k is not Ellipsis for k in keys)
    return first == slice(None) or (first is Ellipsis and used < x.ndim)


def get(x: Tensor, key: Any) -> Tensor:
    """x[key]."""
    if x.copies is not None:
        if _keeps_rows(key, x):
            return sharing(x, batch(get(x.small, key), x.copies))
        if isinstance(key, Tensor) and key.kind is BOOL and key.copies is x.copies:
            found = picked(x, key, get)
            if found is not None:
                return found
        if isinstance(key, int) and not isinstance(key, bool):
            return select(x, 0, key)
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(len(x))
            return narrow(x, 0, start, max(0, stop - start))
    if isinstance(key, Tensor) and key.kind is INT64 and key.ndim == 1:
        return index_select(x, 0, key)
    at, shape, view = _places(x, key)
    return moved(x, at, shape, "index", view=view)


def set_(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value."""
    value = tensor_of(value)
    if x.copies is not None and _keeps_rows(key, x) and value.size_ == ():
        at, copies = _places(x.small, key)[0], x.copies
        put = lambda before: batch(_put(before.small, at, value, "index_put"), copies)  # noqa: E731
        overwrite(x, put, name="x[...] = value")
        return
    at, shape, _ = _places(x, key)
    if value.size_ != ():
        while value.ndim > len(shape) and value.size_[0] == 1:
            value = squeeze(value, 0)
        value = expand(value, shape)
    overwrite(x, lambda before: _put(before, at, value, "index_put"), name="x[...] = value")
