"""Find the variable of a function that is summed before it is multiplied by the mask."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch

from kl_companion.auditing.reading.text import FunctionText

_SUMS = "(?:nan)?(?:sum|mean)|cumsum|logcumsumexp|flip|fliplr|roll|std|var"
# the variable that a call adds up, alone or after other methods: k in k.flip(-1).cumsum(-1)
_SUMMED = re.compile(rf"\btorch\.(?:{_SUMS})\((\w+)|\b(\w+)(?:\.\w+\([^()]*\))*\.(?:{_SUMS})\(")


def summed_unmasked(
    function: Any, run: Callable[[], object], other: Callable[[], object], mask: torch.Tensor
) -> str:
    """Return the name of a tensor [batch, seq] that is summed with its numbers outside the mask; "" for none.

    Args:
        function: A function or a method of the reader.
        run: Calls it.
        other: Calls it with other numbers outside the mask.
        mask: The mask of the batch, [batch, seq].
    """
    text = FunctionText(function)
    code = getattr(inspect.unwrap(text.function), "__code__", None)
    if code is None:
        return ""
    one, two = _locals(code, run), _locals(code, other)
    leaking = {name for name, x in one.items() if _differs_outside(x, two.get(name), mask.bool())}
    summed = (of_torch or name for of_torch, name in _SUMMED.findall(text.source))
    return next((name for name in summed if name in leaking), "")


def _locals(code: CodeType, run: Callable[[], object]) -> dict[str, Any]:
    """Run something and return the variables of the last call of a function in it."""
    found: dict[str, Any] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is code:
            found.clear()
            found.update(frame.f_locals)

    with profiled(note):
        run()
    return found


@contextmanager
def profiled(note: Callable[[FrameType, str, Any], object]) -> Iterator[None]:
    """Call a function on every frame that begins or ends inside, see `sys.setprofile`."""
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def _differs_outside(x: Any, other: Any, inside: torch.Tensor) -> bool:
    """Return whether two tensors are the same under the mask and not outside it."""
    if not all(isinstance(y, torch.Tensor) and y.shape == inside.shape for y in (x, other)):
        return False
    same = torch.isclose(x.detach(), other.detach())
    return bool(same[inside].all()) and not bool(same.all())
