"""Operations that move entries and compute none: views, joins, choices by index."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from kl_companion.in_page.stand_in import elementwise as each
from kl_companion.in_page.stand_in.arrays import (
    Shape,
    axis_of,
    lines,
    places,
    size_of,
    spread,
    steps,
    together,
)
from kl_companion.in_page.stand_in.kinds import BOOL, INT64
from kl_companion.in_page.stand_in.tensor import NotInPage, Tensor, made, overwrite, sharing, tensor_of

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
    if shape.count(-1) == 1 and known and len(x.entries) % known == 0:
        shape[shape.index(-1)] = len(x.entries) // known
    if -1 in shape or size_of(shape) != len(x.entries):
        raise RuntimeError(f"shape '{list(_given(sizes))}' is invalid for input of size {len(x.entries)}")
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
    return tuple(squeeze(part, dim) for part in split(x, 1, dim))


# -- by index ------------------------------------------------------------------------------------------------


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A range of an axis."""
    axis, by = axis_of(dim, x.ndim), steps(x.size_)
    shape = tuple(length if a == axis else n for a, n in enumerate(x.size_))
    return moved(x, places(shape, by, start * by[axis]), shape, "narrow", view=True)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """One place of an axis."""
    return squeeze(narrow(x, dim, index % x.size_[dim], 1), dim)


def diff(x: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    """Differences of neighbors."""
    for _ in range(n):
        m = x.size_[dim]
        x = each.sub(narrow(x, dim, 1, m - 1), narrow(x, dim, 0, m - 1))
    return x


def _within(i: int, n: int, name: str) -> int:
    if not -n <= i < n:
        raise IndexError(f"{name}: index {i} is out of bounds for an axis of size {n}")
    return i % n


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


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Entries by their index along an axis."""
    return moved(x, _along(x, dim, index, "gather"), index.size_, "gather")


def take_along_dim(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """The same."""
    return gather(x, dim, index)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Some places of an axis."""
    axis, by = axis_of(dim, x.ndim), steps(x.size_)
    own = [_within(i, x.size_[axis], "index_select") for i in index.entries]
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


def scatter(x: Tensor, dim: int, index: Tensor, src: Any = None, **given: Any) -> Tensor:
    """A copy with entries put by their index along an axis."""
    src = given.get("value", src)
    return _put(x, _along(x, dim, index, "scatter"), _sources(src, index), "scatter")


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """The same, added."""
    return _put(x, _along(x, dim, index, "scatter_add"), _sources(src, index), "scatter_add", added=True)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """A copy with parts added at some places of an axis."""
    wide = reshape(index, tuple(-1 if a == axis_of(dim, x.ndim) else 1 for a in range(x.ndim)))
    source = source if alpha == 1 else each.mul(source, alpha)
    return scatter_add(x, dim, expand(wide, source.size_), source)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The entries where a mask holds, in a row."""
    x, mask = broadcast_tensors(x, mask)
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
    return each.where(Tensor(keep, (rows, columns), BOOL), x, Tensor([0], (), INT64).as_kind(x.kind))


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """0 above a diagonal."""
    rows, columns = x.size_[-2:]
    keep = [j - i <= diagonal for i in range(rows) for j in range(columns)]
    return each.where(Tensor(keep, (rows, columns), BOOL), x, Tensor([0], (), INT64).as_kind(x.kind))


# -- brackets ------------------------------------------------------------------------------------------------


def _whole(key: Any, x: Tensor) -> list[Any]:
    """A key per axis: no ellipsis, no masks, slices to the end."""
    keys = list(key) if isinstance(key, tuple) else [key]
    found: list[Any] = []
    for k in keys:
        if isinstance(k, list):
            k = tensor_of_list(k)
        if isinstance(k, Tensor) and k.kind is BOOL:
            found += each.nonzero(k, as_tuple=True)
        else:
            found.append(k)
    used = builtins.sum(k is not None and k is not Ellipsis for k in found)
    if used > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
    if not any(k is Ellipsis for k in found):
        found.append(Ellipsis)
    at = next(i for i, k in enumerate(found) if k is Ellipsis)
    return [*found[:at], *[slice(None)] * (x.ndim - used), *found[at + 1 :]]


def tensor_of_list(given: list[Any]) -> Tensor:
    """A list of numbers as a tensor."""
    from kl_companion.in_page.stand_in.tensor import tensor

    return tensor(given)


def _places(x: Tensor, key: Any) -> tuple[Sequence[int], Shape, bool]:
    """Where the entries of x[key] are, its shape, and whether it is a view."""
    keys, by = _whole(key, x), steps(x.size_)
    shape: list[int] = []
    step: list[int] = []
    start, axis, picked, front = 0, 0, [], -1
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
            start += _within(int(k), n, "indexing") * by[axis]
        axis += 1
    if not picked:
        return places(tuple(shape), tuple(step), start), tuple(shape), True
    chosen: Shape = ()
    for k, _, _ in picked:
        chosen = together(chosen, k.size_)
    offsets = [0] * size_of(chosen)
    for k, a, _ in picked:
        wide = each.wide(k, chosen)
        offsets = [o + _within(i, x.size_[a], "indexing") * by[a] for o, i in zip(offsets, wide, strict=True)]
    before = places(tuple(shape[:front]), tuple(step[:front]), start)
    after = places(tuple(shape[front:]), tuple(step[front:]))
    at = [b + o + c for b in before for o in offsets for c in after]
    return at, (*shape[:front], *chosen, *shape[front:]), False


def get(x: Tensor, key: Any) -> Tensor:
    """x[key]."""
    at, shape, view = _places(x, key)
    return moved(x, at, shape, "index", view=view)


def set_(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value."""
    at, shape, _ = _places(x, key)
    value = tensor_of(value)
    if value.size_ != ():
        while value.ndim > len(shape) and value.size_[0] == 1:
            value = squeeze(value, 0)
        value = expand(value, shape)
    overwrite(x, lambda before: _put(before, at, value, "index_put"), name="x[...] = value")
