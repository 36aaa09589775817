"""New tensors: filled, counted up, or like others."""

from __future__ import annotations

import math
from typing import Any

from kl_book.paste.stand_in.arrays import Shape, flat, size_of
from kl_book.paste.stand_in.kinds import BOOL, FLOAT64, INT64, Kind, as_kind, kind_of
from kl_book.paste.stand_in.tensor import Tensor, batch


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    return tuple(int(n) for n in sizes)


def tensor(data: Any, *, dtype: Kind | None = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """A new leaf from numbers, nested lists, or a tensor."""
    entries, shape = _flat(data)
    kinds = [kind_of(x) for x in entries]
    own = max(kinds) if kinds else FLOAT64
    kind = own if dtype is None else dtype
    found = [as_kind([x], k, kind)[0] for x, k in zip(entries, kinds, strict=True)]
    return Tensor(found, shape, kind).requires_grad_(requires_grad)


def _flat(data: Any) -> tuple[list[Any], Shape]:
    if isinstance(data, Tensor):
        return list(data.entries), data.size_
    return flat(_plain(data))


def _plain(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.tolist()
    return [_plain(part) for part in data] if isinstance(data, (list, tuple)) else data


def full(
    size: Any, fill_value: Any, *, dtype: Kind | None = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    """One number everywhere."""
    shape = _shape((size,))
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    kind = kind_of(value) if dtype is None else dtype
    filled = as_kind([value], kind_of(value), kind) * size_of(shape)
    return Tensor(filled, shape, kind).requires_grad_(requires_grad)


def zeros(*sizes: Any, size: Any = None, dtype: Kind = FLOAT64, **given: Any) -> Tensor:
    """0 everywhere."""
    return full(_shape(sizes) if size is None else size, 0, dtype=dtype, **given)


def ones(*sizes: Any, size: Any = None, dtype: Kind = FLOAT64, **given: Any) -> Tensor:
    """1 everywhere."""
    return full(_shape(sizes) if size is None else size, 1, dtype=dtype, **given)


def full_like(x: Tensor, fill_value: Any, *, dtype: Kind | None = None, **_: Any) -> Tensor:
    """One number everywhere, in the shape of another tensor."""
    if x.copies is not None:
        return batch(full_like(x.small, fill_value, dtype=dtype), x.copies)
    return full(x.size_, fill_value, dtype=x.kind if dtype is None else dtype)


def zeros_like(x: Tensor, *, dtype: Kind | None = None, **_: Any) -> Tensor:
    """0 everywhere, in the shape of another tensor."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Tensor, *, dtype: Kind | None = None, **_: Any) -> Tensor:
    """1 everywhere, in the shape of another tensor."""
    return full_like(x, 1, dtype=dtype)


def new_full(x: Tensor, size: Any, fill_value: Any, *, dtype: Kind | None = None, **_: Any) -> Tensor:
    """One number everywhere, of the kind of another tensor."""
    return full(size, fill_value, dtype=x.kind if dtype is None else dtype)


def new_zeros(x: Tensor, *sizes: Any, dtype: Kind | None = None, **_: Any) -> Tensor:
    """0 everywhere, of the kind of another tensor."""
    return new_full(x, _shape(sizes), 0, dtype=dtype)


def new_ones(x: Tensor, *sizes: Any, dtype: Kind | None = None, **_: Any) -> Tensor:
    """1 everywhere, of the kind of another tensor."""
    return new_full(x, _shape(sizes), 1, dtype=dtype)


def new_tensor(x: Tensor, data: Any, *, dtype: Kind | None = None, **_: Any) -> Tensor:
    """Numbers, of the kind of another tensor."""
    return tensor(data, dtype=x.kind if dtype is None else dtype)


def arange(*ends: Any, dtype: Kind | None = None, **_: Any) -> Tensor:
    """From 0 or a start, by steps of 1 or another, below an end."""
    start, end, step = (0, *ends, 1) if len(ends) == 1 else (*ends, 1)[:3]
    start, end, step = (v.item() if isinstance(v, Tensor) else v for v in (start, end, step))
    count = max(0, math.ceil((end - start) / step))
    own = max(kind_of(v) for v in (start, end, step))
    kind = own if dtype is None else dtype
    found = as_kind([start + i * step for i in range(count)], INT64, own)
    return Tensor(as_kind(found, own, kind), (count,), kind)


def linspace(start: float, end: float, steps: int, **_: Any) -> Tensor:
    """So many numbers, evenly from one to another."""
    found = [start + (end - start) * i / max(steps - 1, 1) for i in range(steps)]
    return Tensor(list(map(float, found)), (steps,), FLOAT64)


def eye(n: int, m: int | None = None, *, dtype: Kind = FLOAT64, **_: Any) -> Tensor:
    """1 on the diagonal."""
    columns = n if m is None else m
    found = [i == j for i in range(n) for j in range(columns)]
    return Tensor(as_kind(found, BOOL, dtype), (n, columns), dtype)


def one_hot(index: Tensor, num_classes: int = -1) -> Tensor:
    """A row per index, 1 at its place."""
    rows = index if index.small is None else index.small
    count = max(rows.entries) + 1 if num_classes == -1 else num_classes
    if index.copies is not None:
        return batch(one_hot(rows, count), index.copies)
    if any(not 0 <= i < count for i in index.entries):
        raise RuntimeError("Class values must be smaller than num_classes.")
    return Tensor([int(i == c) for i in index.entries for c in range(count)], (*index.size_, count), INT64)


def as_tensor(data: Any, *, dtype: Kind | None = None, **_: Any) -> Tensor:
    """A tensor as it is, or a new one."""
    if isinstance(data, Tensor):
        return data if dtype is None else data.as_kind(dtype)
    return tensor(data, dtype=dtype)
