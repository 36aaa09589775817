"""Least squares of small matrices, one at a time, by singular values."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from kl_book.paste.stand_in.arrays import size_of
from kl_book.paste.stand_in.kinds import FLOAT64, INT64
from kl_book.paste.stand_in.tensor import Tensor

Rows = list[list[float]]
_SWEEPS = 60
_TINY = sys.float_info.epsilon


class Fitted(NamedTuple):
    """`torch.linalg.lstsq`."""

    solution: Tensor


def _stacked(function: Callable[[Rows, Rows], Rows], a: Tensor, b: Tensor) -> Tensor:
    """A function of matrices, for each of a stack."""
    n, k = a.size_[-2:]
    right = b.size_[-1]
    found: list[float] = []
    for i in range(size_of(a.size_[:-2])):
        matrix = _rows(a.entries[i * n * k : (i + 1) * n * k], k)
        found += [
            x
            for row in function(matrix, _rows(b.entries[i * n * right : (i + 1) * n * right], right))
            for x in row
        ]
    return Tensor(found, (*a.size_[:-2], k, right), FLOAT64)


def _rows(entries: list[float], width: int) -> Rows:
    return [entries[i : i + width] for i in range(0, len(entries), width)]


def lstsq(a: Tensor, b: Tensor, *, rcond: float | None = None, driver: str | None = None) -> Fitted:
    """Least-squares solutions, of which the shortest where several are as good.

    Args:
        a: [..., rows, columns].
        b: [..., rows, right sides].
        rcond: Singular values below this part of the largest count as 0.
        driver: Not looked at.
    """
    part = _TINY * max(a.size_[-2:]) if rcond is None else rcond
    return Fitted(_stacked(lambda m, right: _fitted(m, right, part), a, b))


def matrix_rank(a: Tensor) -> Tensor:
    """Return the rank of a matrix [rows, columns]: the trace of its pseudo-inverse times itself."""
    inverse = lstsq(a, a).solution
    width = a.size_[1]
    return Tensor([round(sum(inverse.entries[i * width + i] for i in range(width)))], (), INT64)


def _fitted(a: Rows, b: Rows, part: float) -> Rows:
    """By one-sided Jacobi rotations: columns turned until they are orthogonal are U S."""
    k = len(a[0])
    columns = [list(column) for column in zip(*a, strict=True)]
    turned = [[float(i == j) for j in range(k)] for i in range(k)]  # V, column by column
    for _ in range(_SWEEPS):
        moved = False
        for p in range(k):
            for q in range(p + 1, k):
                moved |= _orthogonal(columns, turned, p, q)
        if not moved:
            break
    squares = [_dot(c, c) for c in columns]
    least = part * math.sqrt(max(squares, default=0.0))
    found = []
    for right in zip(*b, strict=True):
        weights = [
            _dot(c, right) / s if math.sqrt(s) > least else 0.0 for c, s in zip(columns, squares, strict=True)
        ]
        found.append([sum(w * v[i] for w, v in zip(weights, turned, strict=True)) for i in range(k)])
    return [list(row) for row in zip(*found, strict=True)]


def _orthogonal(columns: Rows, turned: Rows, p: int, q: int) -> bool:
    """Turn two columns until they are orthogonal; whether they were not."""
    a, b, c = _dot(columns[p], columns[p]), _dot(columns[q], columns[q]), _dot(columns[p], columns[q])
    if abs(c) <= _TINY * math.sqrt(a * b) / 4:
        return False
    ratio = (b - a) / (2 * c)
    tangent = math.copysign(1.0, ratio) / (abs(ratio) + math.hypot(1.0, ratio))
    cosine = 1 / math.hypot(1.0, tangent)
    sine = cosine * tangent
    for pair in (columns, turned):
        x, y = pair[p], pair[q]
        pair[p] = [cosine * u - sine * v for u, v in zip(x, y, strict=True)]
        pair[q] = [sine * u + cosine * v for u, v in zip(x, y, strict=True)]
    return True


def _dot(x: Any, y: Any) -> float:
    return math.fsum(u * v for u, v in zip(x, y, strict=True))
