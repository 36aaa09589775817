"""Loops over the answers of a batch: what was computed for one answer is not computed again for its copies.

A row of a batch of few, see `kl_book.paste.stand_in.copies`, is a tensor of its own that points to the row
that it is a copy of. Functions of such tensors are functions of the rows that they point to, so their results
are kept there, and a loop over ten thousand copies computes as often as there are different rows. What a loop
adds up is another sum after every answer; after some steps results are therefore no longer kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from kl_book.paste.stand_in import graph
from kl_book.paste.stand_in.arrays import Shape, size_of
from kl_book.paste.stand_in.copies import copies_of
from kl_book.paste.stand_in.graph import GraphStep
from kl_book.paste.stand_in.kinds import Kind
from kl_book.paste.stand_in.tensor import Tensor, batch, made, sharing

DEEPEST = 40  # steps from a row to what is kept
_PLAIN = (bool, int, str, Kind, type(None), type(Ellipsis))


class Kept:
    """What was computed of a tensor, by function and arguments, and how many steps it is from a row."""

    __slots__ = ("depth", "results", "step")

    def __init__(self, of: Tensor, depth: int) -> None:
        self.depth = depth
        self.results: dict[Hashable, Any] = {}
        # of every copy: what it has of a gradient is the original's
        self.step = GraphStep((of,), lambda g: (g,), "copy") if of.requires_grad else None


def _copy(original: Tensor) -> Tensor:
    """A tensor like another, of its own to whoever writes into it."""
    step = original.kept.step
    found = Tensor(original._entries, original.size_, original.kind, step, original.requires_grad)
    found.small, found.copies, found.same = original.small, original.copies, original
    return found


def rows(x: Tensor, places: Sequence[int], *, keep: bool = False) -> list[Tensor]:
    """Rows of a batch of few, each without the axis of the batch or (``keep``) with it."""
    assert x.copies is not None
    if x.kept is None:
        x.kept = Kept(x, 0)
    known, which, grad = x.kept.results, x.copies.which, graph.is_grad_enabled()
    found = []
    shown = sharing(x, Tensor([], (0,), x.kind))  # stands for all of them among what has memory of x
    for place in places:
        key = which[place], keep, grad
        if key not in known:
            known[key] = _one_of(x.small, which[place], (1,) if keep else ())
        found.append(_copy(known[key]))
        found[-1].base = shown
    return found


def _one_of(small: Tensor, which: int, axis: Shape) -> Tensor:
    shape = axis + small.size_[1:]
    size, count = size_of(shape), len(small)

    def back(g: list[float]) -> tuple[list[float]]:
        return ([0.0] * (size * which) + g + [0.0] * (size * (count - which - 1)),)

    entries = small.entries[size * which : size * (which + 1)]
    found = made(entries, shape, small.kind, (small,), back, "row")
    found.kept = Kept(found, 0)
    return found


def once(function: Callable[..., Any], inside: Sequence[Any] = ()) -> Callable[..., Any]:
    """A function that writes into nothing and draws nothing, computed once for all copies of its arguments.

    Args:
        function: The function.
        inside: What else it depends on, the last of these at the time when it is called.
    """

    @functools.wraps(function)
    def apply(*args: Any, **given: Any) -> Any:
        first = args[0] if args else None
        if not isinstance(first, Tensor) or first.same is None:
            return function(*args, **given)
        key: Any = (function, inside[-1] if inside else None, graph.is_grad_enabled())
        for a in (*args[1:], *given.items()) if given else args[1:]:
            part = id(a.same) if isinstance(a, Tensor) and a.same is not None else _key(a)
            if part is None:
                return function(*args, **given)
            key = (*key, part)
        results = first.same.kept.results
        if key not in results:
            originals = [a.same if isinstance(a, Tensor) else a for a in args]
            depth = 1 + max(a.kept.depth for a in originals if isinstance(a, Tensor))
            if depth > DEEPEST:
                return function(*args, **given)
            found = function(*originals, **given)
            _keep(found, depth)
            # with the originals, which are held so that no other tensor is taken for one of them
            results[key] = _is_new(found, originals), found, originals
        new, found, originals = results[key]
        return _copy(found) if new else _own(found, args, originals)

    return apply


def _key(given: Any) -> Hashable:
    """What tells arguments that are no copies from others; None where nothing is known to."""
    if isinstance(given, float):
        return given, math.copysign(1.0, given)
    if isinstance(given, _PLAIN):
        return type(given), given
    if isinstance(given, slice):
        return _key(("slice", given.start, given.stop, given.step))
    if isinstance(given, tuple):
        keys = tuple([_key(part) for part in given])
        return None if None in keys else keys
    return None


def _keep(found: Any, depth: int) -> None:
    if isinstance(found, Tensor):
        if found.kept is None:
            found.kept = Kept(found, depth)
    elif isinstance(found, tuple):
        for part in found:
            _keep(part, depth)


def _is_new(found: Any, originals: Sequence[Any]) -> bool:
    return isinstance(found, Tensor) and found.base is None and not any(found is x for x in originals)


def _own(found: Any, args: Sequence[Any], originals: Sequence[Any]) -> Any:
    """A result for whoever asked: tensors of his own, or what he gave where that is the result."""
    if isinstance(found, Tensor):
        for mine, original in zip(args, originals, strict=True):
            if found is original:
                return mine
        return _copy(found) if found.base is None else sharing(args[0], _copy(found))
    if isinstance(found, tuple):
        parts = [_own(part, args, originals) for part in found]
        return tuple(parts) if type(found) is tuple else type(found)(*parts)
    return found


def stacked(given: Sequence[Tensor], stack: Callable[[list[Tensor]], Tensor]) -> Tensor | None:
    """Rows along a new first axis as a batch of the few different ones; None where they are not copies."""
    originals = [x.same for x in given if x.same is not None]
    if len(originals) < len(given):
        return None
    few = list({id(x): x for x in originals}.values())
    places = {id(x): place for place, x in enumerate(few)}
    copies = copies_of(tuple([places[id(x)] for x in originals]), len(few))
    return None if copies is None else batch(stack(few), copies)
