"""Operations along axes: sums, largest entries, log-softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from kl_book.paste.stand_in import elementwise as each
from kl_book.paste.stand_in.arrays import Shape, axes_of, axis_of, put, taken
from kl_book.paste.stand_in.kinds import BOOL, FLOAT64, INT64, Kind
from kl_book.paste.stand_in.row_by_row import weighted
from kl_book.paste.stand_in.tensor import Tensor, batch, made

Axes = int | Iterable[int] | None
Entries = list[Any]
_EXTREMES = ("amax", "amin", "max", "min")


def _left(shape: Shape, axes: tuple[int, ...], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def reduced(
    x: Tensor,
    dim: Axes,
    keepdim: bool,
    function: Callable[[Entries], Any],
    slopes: Callable[[Entries, Any], Entries] | None,
    name: str,
    kind: Kind | None = None,
) -> Tensor:
    """One number for every line along some axes.

    Args:
        x: The tensor.
        dim: The axes, None for all.
        keepdim: Whether they stay, of size 1.
        function: Of the entries of a line.
        slopes: Its derivatives by them, given them and its result; None for 0.
        name: Of the operation.
        kind: Of the result, by default that of ``x``.
    """
    axes = axes_of(dim, x.ndim)
    if x.copies is not None:
        if 0 not in axes:
            return batch(reduced(x.small, axes, keepdim, function, slopes, name, kind), x.copies)
        if name == "sum":
            return sum_(each.mul(*weighted(x)), axes, keepdim)
        if name in ("any", "all") or (name in _EXTREMES and kind is None and not x.requires_grad):
            return reduced(x.small, axes, keepdim, function, slopes, name, kind)
    parts = taken(x.entries, x.size_, axes)
    out = list(map(function, parts))

    def back(g: Entries) -> tuple[Entries]:
        if slopes is None:
            return ([0.0] * len(x.entries),)
        scaled = ([a * s for s in slopes(part, y)] for a, part, y in zip(g, parts, out, strict=True))
        return (put(scaled, x.size_, axes),)

    return made(out, _left(x.size_, axes, keepdim), x.kind if kind is None else kind, (x,), back, name)


def _floating(x: Tensor, name: str) -> Tensor:
    if x.kind is not FLOAT64:
        raise RuntimeError(
            f"{name}(): could not infer output dtype. Input dtype must be floating, got {x.kind}"
        )
    return x


def _summed(x: Tensor) -> Tensor:
    return x.as_kind(INT64) if x.kind is BOOL else x


def sum_(x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: Kind | None = None) -> Tensor:
    """Sums; of booleans their number."""
    x = _summed(x) if dtype is None else x.as_kind(dtype)
    return reduced(x, dim, keepdim, _sum, lambda line, _: [1.0] * len(line), "sum")


def _sum(line: Entries) -> Any:
    total = 0 if line and isinstance(line[0], int) else 0.0
    for v in line:
        total += v
    return total


def mean(x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: Kind | None = None) -> Tensor:
    """Means of floating numbers; NaN of none."""
    x = _floating(x if dtype is None else x.as_kind(dtype), "mean")
    if over := _over_copies(x, dim):
        return each.div(sum_(x, dim, keepdim), float(over))
    slopes = lambda line, _: [1 / max(len(line), 1)] * len(line)  # noqa: E731
    return reduced(x, dim, keepdim, lambda line: each.divide(_sum(line), len(line)), slopes, "mean")


def _over_copies(x: Tensor, dim: Axes) -> int:
    """How many entries a line has that goes over a batch of copies; 0 where none does."""
    axes = axes_of(dim, x.ndim)
    return math.prod(x.size_[a] for a in axes) if x.copies is not None and 0 in axes else 0


def prod(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Products."""

    def slopes(line: Entries, _: Any) -> Entries:
        return [math.prod(line[:i] + line[i + 1 :]) for i in range(len(line))]

    return reduced(_summed(x), dim, keepdim, math.prod, slopes, "prod")


def _nans_first(choose: Callable[[Entries], Any]) -> Callable[[Entries], Any]:
    def chosen(line: Entries) -> Any:
        if not line:
            raise IndexError("Expected reduction dim to have non-zero size.")
        return next((v for v in line if v != v), None) if any(v != v for v in line) else choose(line)

    return chosen


def shared(line: Entries, top: Any) -> Entries:
    """Among equals the gradient is shared."""
    at = [v == top or (v != v and top != top) for v in line]
    return [a / at.count(True) for a in at]


LARGEST, SMALLEST = _nans_first(max), _nans_first(min)


def amax(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Largest entries."""
    return reduced(x, dim, keepdim, LARGEST, shared, "amax")


def amin(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Smallest entries."""
    return reduced(x, dim, keepdim, SMALLEST, shared, "amin")


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Both."""
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def first(line: Entries, wanted: Any) -> int:
    """The place of the first of equal entries."""
    return next(i for i, v in enumerate(line) if v == wanted or (v != v and wanted != wanted))


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the largest entries are."""
    return reduced(x, dim, keepdim, lambda line: first(line, LARGEST(line)), None, "argmax", INT64)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the smallest entries are."""
    return reduced(x, dim, keepdim, lambda line: first(line, SMALLEST(line)), None, "argmin", INT64)


def any_(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether an entry is not 0."""
    return reduced(x, dim, keepdim, lambda line: any(map(bool, line)), None, "any", BOOL)


def all_(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether all entries are not 0."""
    return reduced(x, dim, keepdim, lambda line: all(map(bool, line)), None, "all", BOOL)


def count_nonzero(x: Tensor, dim: Axes = None) -> Tensor:
    """How many entries are not 0."""
    return reduced(x, dim, False, lambda line: [bool(v) for v in line].count(True), None, "count", INT64)


def var(x: Tensor, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, **given: Any) -> Tensor:
    """Variances, over one less than the number of entries unless ``correction`` or ``unbiased`` say else."""
    if isinstance(dim, bool):
        return var(x, None, dim, keepdim, **given)
    correction = given.get("correction", int(unbiased))
    if over := _over_copies(_floating(x, "var"), dim):
        squares = each.square(each.sub(x, mean(x, dim, True)))
        return each.div(sum_(squares, dim, keepdim), float(max(over - correction, 0)))

    def slopes(line: Entries, _: Any) -> Entries:
        middle = _sum(line) / len(line)
        return [each.divide(2 * (v - middle), len(line) - correction) for v in line]

    def function(line: Entries) -> float:
        middle = each.divide(_sum(line), len(line))
        return each.divide(_sum([(v - middle) ** 2 for v in line]), float(max(len(line) - correction, 0)))

    return reduced(_floating(x, "var"), dim, keepdim, function, slopes, "var")


def std(x: Tensor, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, **given: Any) -> Tensor:
    """Standard deviations; where one is 0 its gradient is NaN, as torch's."""
    return each.sqrt(var(x, dim, unbiased, keepdim, **given))


def norm(x: Tensor, p: Any = 2, dim: Axes = None, keepdim: bool = False, **_: Any) -> Tensor:
    """p-norms."""
    if p in (2, 2.0, None, "fro"):

        def slopes(line: Entries, size: float) -> Entries:
            return [v / size if size else 0.0 for v in line]

        return reduced(
            _floating(x, "norm"),
            dim,
            keepdim,
            lambda line: math.sqrt(_sum([v * v for v in line])),
            slopes,
            "norm",
        )
    if p == 1:
        return sum_(each.absolute(x), dim, keepdim)
    if p == math.inf:
        return amax(each.absolute(x), dim, keepdim)
    return each.power(sum_(each.power(each.absolute(x), p), dim, keepdim), 1 / p)


# -- log-sum-exp and softmax ---------------------------------------------------------------------------------


def _logsumexp(line: Entries) -> float:
    top = LARGEST(line)
    if abs(top) == math.inf or top != top:
        return float(top)
    return float(top + math.log(_sum([each._exp(v - top) for v in line])))


def _shares(line: Entries, total: float) -> Entries:
    return [each._exp(v - total) if total != -math.inf else math.nan for v in line]


def logsumexp(x: Tensor, dim: Axes, keepdim: bool = False) -> Tensor:
    """log sum exp."""

    def slopes(line: Entries, total: float) -> Entries:
        return [0.0] * len(line) if total == -math.inf else _shares(line, total)

    return reduced(x.as_kind(FLOAT64), dim, keepdim, _logsumexp, slopes, "logsumexp")


def _by_line(
    x: Tensor,
    dim: int,
    function: Callable[[Entries], Entries],
    back: Callable[[Entries, Entries], Entries],
    name: str,
) -> Tensor:
    """As many numbers for every line along an axis; ``back`` takes a line's gradient and result."""
    axes = (axis_of(dim, x.ndim),) if x.ndim else ()
    if x.copies is not None and axes != (0,):
        return batch(_by_line(x.small, dim, function, back, name), x.copies)
    parts = list(map(function, taken(x.entries, x.size_, axes)))

    def backward(g: Entries) -> tuple[Entries]:
        given = zip(taken(g, x.size_, axes), parts, strict=True)
        return (put((back(a, part) for a, part in given), x.size_, axes),)

    return made(put(parts, x.size_, axes), x.size_, x.kind, (x,), backward, name)


def log_softmax(x: Tensor, dim: int = -1, *_: Any, dtype: Kind | None = None, **__: Any) -> Tensor:
    """Normalized log-probabilities."""

    def function(line: Entries) -> Entries:
        total = _logsumexp(line)
        return [v - total if total != -math.inf else math.nan for v in line]

    def back(g: Entries, out: Entries) -> Entries:
        total = _sum(g)
        return [a - each._exp(y) * total for a, y in zip(g, out, strict=True)]

    return _by_line(
        _floating(x if dtype is None else x.as_kind(dtype), "log_softmax"), dim, function, back, "log_softmax"
    )


def softmax(x: Tensor, dim: int = -1, *_: Any, dtype: Kind | None = None, **__: Any) -> Tensor:
    """Probabilities."""

    def function(line: Entries) -> Entries:
        return _shares(line, _logsumexp(line))

    def back(g: Entries, out: Entries) -> Entries:
        inner = _sum([a * y for a, y in zip(g, out, strict=True)])
        return [y * (a - inner) for a, y in zip(g, out, strict=True)]

    return _by_line(
        _floating(x if dtype is None else x.as_kind(dtype), "softmax"), dim, function, back, "softmax"
    )


def cumsum(x: Tensor, dim: int, *, dtype: Kind | None = None) -> Tensor:
    """Sums up to every entry."""

    def function(line: Entries) -> Entries:
        found, total = [], 0
        for v in line:
            total += v
            found.append(total)
        return found

    x = _summed(x) if dtype is None else x.as_kind(dtype)
    return _by_line(x, dim, function, lambda g, _: function(g[::-1])[::-1], "cumsum")
