"""Bounds and choices: clamp, where, masks."""

from __future__ import annotations

import math
from typing import Any

from kl_book.paste.stand_in import elementwise as each
from kl_book.paste.stand_in.arrays import corners, together
from kl_book.paste.stand_in.kinds import BOOL, INT64
from kl_book.paste.stand_in.row_by_row import entrywise
from kl_book.paste.stand_in.tensor import Tensor, made, tensor_of

Entries = list[Any]


def clamp(x: Any, min: Any = None, max: Any = None) -> Tensor:
    """Between bounds, numbers or tensors; the gradient passes where x is within, at the bounds too."""
    if min is None and max is None:
        raise ValueError("torch.clamp: At least one of 'min' or 'max' must not be None")
    found = tensor_of(x)
    if min is not None:
        found = _at_least(found, min)
    return found if max is None else _at_most(found, max)


_at_least = each.binary(each.larger, lambda x, y: float(x >= y), lambda x, y: float(x < y), "clamp")
_at_most = each.binary(each.smaller, lambda x, y: float(x <= y), lambda x, y: float(x > y), "clamp")


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """x where the condition holds, else y; of a condition alone the indices where it holds."""
    if x is None:
        return nonzero(condition, as_tuple=True)
    return _chosen(condition, x, y)


@entrywise
def _chosen(condition: Any, x: Any, y: Any) -> Tensor:
    condition, x, y = tensor_of(condition), tensor_of(x), tensor_of(y)
    kind = max(x.kind, y.kind)
    x, y = x.as_kind(kind), y.as_kind(kind)
    shape = together(condition.size_, together(x.size_, y.size_))
    chosen = each.wide(condition, shape)
    out = [a if c else b for c, a, b in zip(chosen, each.wide(x, shape), each.wide(y, shape), strict=True)]

    def back(g: Entries) -> tuple[Entries, Entries]:
        first = [a if c else 0.0 for c, a in zip(chosen, g, strict=True)]
        second = [0.0 if c else a for c, a in zip(chosen, g, strict=True)]
        return each.narrow(first, x.size_, shape), each.narrow(second, y.size_, shape)

    return made(out, shape, kind, (x, y), back, "where")


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """A number where a mask holds."""
    if mask.kind is not BOOL:
        raise RuntimeError(f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.kind}")
    return where(mask, tensor_of(value).as_kind(x.kind), x)


def nonzero(x: Any, *, as_tuple: bool = False) -> Any:
    """Indices of the entries that are not 0."""
    x = tensor_of(x)
    found = [at for at, v in zip(corners(x.size_), x.entries, strict=True) if v]
    if as_tuple:
        return tuple(Tensor([at[i] for at in found], (len(found),), INT64) for i in range(max(x.ndim, 1)))
    return Tensor([i for at in found for i in at], (len(found), x.ndim), INT64)


def lerp(x: Any, end: Any, weight: Any) -> Tensor:
    """x + weight (end - x)."""
    return each.add(x, each.mul(weight, each.sub(end, x)))


def nan_to_num(
    x: Any, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Numbers in place of NaN and the infinities, where the gradient is 0."""
    limit = 1.7976931348623157e308
    high, low = (limit if posinf is None else posinf), (-limit if neginf is None else neginf)

    def plain(v: float) -> float:
        return (nan or 0.0) if v != v else high if v == math.inf else low if v == -math.inf else v

    return each.unary(plain, lambda v, _: float(v == v and abs(v) != math.inf), "nan_to_num")(x)
