"""Sums of products over shared axes: `matmul`, `einsum` and their like, all as one rule.

A product is spelled as einsum does: a letter per axis. Its gradient by one factor is the same kind of product
of the result's gradient and the other factors.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from kl_book.paste.stand_in.arrays import Shape, places, size_of, steps, together
from kl_book.paste.stand_in.kinds import INT64, as_kind
from kl_book.paste.stand_in.shaping import expand
from kl_book.paste.stand_in.tensor import Tensor, made

Entries = list[Any]


def einsum(equation: str, *given: Any) -> Tensor:
    """A sum of products, spelled with a letter per axis and no ellipsis.

    Raises:
        RuntimeError: letters that do not fit the tensors.
    """
    tensors = list(given[0]) if len(given) == 1 and isinstance(given[0], (list, tuple)) else list(given)
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if "->" not in equation:
        right = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    if len(terms) != len(tensors):
        raise RuntimeError(f"einsum(): {len(terms)} terms and {len(tensors)} tensors in {equation!r}")
    sizes: dict[str, int] = {}
    for term, t in zip(terms, tensors, strict=True):
        if len(term) != t.ndim:
            raise RuntimeError(f"einsum(): {term!r} does not name the {t.ndim} axes of a tensor")
        for c, n in zip(term, t.size_, strict=True):
            if sizes.setdefault(c, n) != n:
                raise RuntimeError(f"einsum(): the axes {c!r} have sizes {sizes[c]} and {n}")
    kind = max(t.kind for t in tensors)
    tensors = [t.as_kind(kind) for t in tensors]
    out = _summed(terms, [t.entries for t in tensors], [t.size_ for t in tensors], right, sizes)
    shape = tuple(sizes[c] for c in right)
    if 0 in sizes.values():
        out = as_kind(out, INT64, kind)

    def back(g: Entries) -> list[Entries | None]:
        parts: list[Entries | None] = []
        for i, t in enumerate(tensors):
            if not t.requires_grad:
                parts.append(None)
                continue
            others = [j for j in range(len(tensors)) if j != i]
            names = [right, *(terms[j] for j in others)]
            entries = [g, *(tensors[j].entries for j in others)]
            shapes = [shape, *(tensors[j].size_ for j in others)]
            parts.append(_summed(names, entries, shapes, terms[i], sizes))
        return parts

    return made(out, shape, kind, tuple(tensors), back, "einsum")


def _summed(
    terms: Sequence[str],
    entries: Sequence[Entries],
    shapes: Sequence[Shape],
    right: str,
    sizes: dict[str, int],
) -> Entries:
    """The entries of a sum of products; of letters that only the result has, everything is repeated."""
    inner = [c for c in sizes if c not in right and any(c in term for term in terms)]
    letters = [*dict.fromkeys(right), *inner]
    whole = tuple(sizes[c] for c in letters)
    product: Entries | None = None
    for term, values, shape in zip(terms, entries, shapes, strict=True):
        by = steps(shape)
        step = tuple(sum(s for c, s in zip(term, by, strict=True) if c == letter) for letter in letters)
        part = [values[i] for i in places(whole, step)]
        product = part if product is None else [a * b for a, b in zip(product, part, strict=True)]
    assert product is not None
    count = size_of(tuple(sizes[c] for c in inner))
    if not count:  # sums of nothing
        return [0] * size_of(tuple(sizes[c] for c in right))
    summed = [sum(product[i : i + count]) for i in range(0, len(product), count)] if count != 1 else product
    if len(set(right)) == len(right):
        return summed
    found = [0.0] * size_of(tuple(sizes[c] for c in right))  # a letter twice: only the diagonal
    by = steps(tuple(sizes[c] for c in right))
    own = list(dict.fromkeys(right))
    step = tuple(sum(s for c, s in zip(right, by, strict=True) if c == letter) for letter in own)
    for at, v in zip(places(tuple(sizes[c] for c in own), step), summed, strict=True):
        found[at] = v
    return found


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """x @ y: of vectors, matrices, or stacks of matrices.

    Raises:
        RuntimeError: sizes that do not fit, or a number.
    """
    if not x.ndim or not y.ndim:
        raise RuntimeError("both arguments to matmul need to be at least 1D")
    if x.size_[-1] != y.size_[-2 if y.ndim > 1 else -1]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({list(x.size_)} and {list(y.size_)})")
    stacked = together(x.size_[:-2], y.size_[:-2])
    if x.ndim > 2 or y.ndim > 2:
        x = expand(x, (*stacked, *x.size_[-2:])) if x.ndim > 1 else x
        y = expand(y, (*stacked, *y.size_[-2:])) if y.ndim > 1 else y
    letters = string.ascii_lowercase[: len(stacked)]
    left = letters + "xz" if x.ndim > 1 else "z"
    right = letters + "zy" if y.ndim > 1 else "z"
    wanted = letters + ("x" if x.ndim > 1 else "") + ("y" if y.ndim > 1 else "")
    return einsum(f"{left},{right}->{wanted}", x, y)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of vectors."""
    return einsum("i,i->", x, y)


def outer(x: Tensor, y: Tensor) -> Tensor:
    """The outer product of vectors."""
    return einsum("i,j->ij", x, y)
