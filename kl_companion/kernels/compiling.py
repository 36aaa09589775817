"""Eager or compiled: which form of a kernel runs, and the compiled forms, one for each kind of input.

PyTorch's compiler makes C++ of a kernel on a CPU and Triton on a GPU. What it made is kept on disk by the
compiler's own cache, so that later processes load it.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import FunctionType
from typing import Any, Literal, get_args
from unittest import mock

import torch

from kl_companion.checks import check_choice
from kl_companion.kernels.lanes import HELD

Backend = Literal["auto", "compiled", "eager"]
_WORTH = 1 << 20  # entries of the logits from which "auto" compiles: fewer hardly repay it
_PART = 1 << 16  # entries that the eager form works on at a time
_PATIENCE = 3.0  # seconds after which a compilation is announced
_SLOW = "compiling the kernel %s: once on this machine for these dtypes, later processes load it from disk"
_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    "realize_opcount_threshold": 1000,  # one loop, nothing stored in between
    "realize_reads_threshold": 100,
    "cpp.enable_floating_point_contract_flag": "fast",  # a product and a sum may be rounded once
}
_ONE_AT_A_TIME = threading.RLock()
_log = logging.getLogger(__name__)


@cache
def compiler_found(device: str) -> bool:
    """Whether PyTorch's compiler can make code for a type of device here; logged once where it cannot."""
    found = _cpp_compiler() if device == "cpu" else device == "cuda" and find_spec("triton") is not None
    if not found:
        missing = "a C++ compiler" if device == "cpu" else "Triton"
        _log.info("the eager kernels are used on %s: %s is missing", device, missing)
    return found


def _cpp_compiler() -> bool:
    from torch._inductor import config

    candidates = config.cpp.cxx if isinstance(config.cpp.cxx, (tuple, list)) else (config.cpp.cxx,)
    return any(name and shutil.which(name) for name in candidates)


def compiles(backend: Backend, entries: int, device: torch.device) -> bool:
    """Whether the compiled form runs for logits of so many entries.

    "auto" takes it where a compiler is found and the logits are large, unless a mode of PyTorch watches every
    operator, which no compiled form shows.

    Raises:
        ValueError: an unknown backend, or "compiled" where no compiler is found.
    """
    check_choice("backend", backend, get_args(Backend))
    if backend == "compiled" and not compiler_found(device.type):
        raise ValueError(
            f"backend is 'compiled', but no compiler is found for {device.type}: expected a C++ compiler in "
            "the path (Triton for a GPU), or backend='auto', which takes the eager kernels then"
        )
    large = entries >= _WORTH and torch._C._len_torch_dispatch_stack() == 0
    return backend == "compiled" or (backend == "auto" and large and compiler_found(device.type))


class Kernel:
    """A function of tensors that runs as it is or compiled, with one compiled form per kind of arguments."""

    def __init__(self, function: Callable[..., Any], *, whole: bool = False) -> None:
        """Wrap ``function(*tensors_or_None, **static)``, of pieces of rows or of ``whole`` rows."""
        self.function, self.whole = function, whole
        self._made: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, compiled: bool, *tensors: torch.Tensor | None, **static: Any) -> Any:
        """Run it, on tensors whose sizes may change from call to call."""
        if not compiled:
            return self._in_parts(tensors, static)
        kinds = tuple(None if t is None else _kind(t) for t in tensors)
        key = (kinds, *static.items())
        if key in self._made:
            return self._made[key](*map(_loadable, tensors))
        return self._first(key, tensors, static)

    def _first(
        self, key: tuple[Any, ...], tensors: tuple[torch.Tensor | None, ...], static: dict[str, Any]
    ) -> Any:
        made = _compile(self.function, static, [t is not None and t.dtype == torch.int32 for t in tensors])
        for t in tensors:
            if t is not None and t.is_cuda and t.ndim > 1:
                torch._dynamo.mark_static(t, t.ndim - 1)  # a GPU is slow to divide by what it does not know
        slow = threading.Timer(_PATIENCE, _log.warning, [_SLOW, self.function.__name__])
        slow.daemon = True
        slow.start()
        try:
            with _ONE_AT_A_TIME, _patched():
                results = made(*map(_loadable, tensors))
        finally:
            slow.cancel()
        self._made[key] = made
        return results

    def _in_parts(self, tensors: tuple[torch.Tensor | None, ...], static: dict[str, Any]) -> Any:
        """Run it as it is, on a few pieces at a time, whose dozens of results stay in the cache."""
        first = next(t for t in tensors if t is not None)
        size = len(first) if self.whole else max(1, _PART // max(1, first[:1].numel()))
        if len(first) <= size or first.device.type != "cpu":
            return self.function(*tensors, **static)
        results = []
        for start in range(0, len(first), size):
            part = (t if t is None or t.ndim == 0 else t[start : start + size] for t in tensors)
            results.append(self.function(*part, **static))
        return None if results[0] is None else tuple(torch.cat(found) for found in zip(*results, strict=True))


def _kind(t: torch.Tensor) -> tuple[object, ...]:
    """What the compiler makes another form for: sizes of 1, pieces of odd length, on a GPU of any length."""
    length = t.shape[-1] if t.ndim > 1 else 0
    return t.dtype, t.device.type, *(size == 1 for size in t.shape), length if t.is_cuda else length % 2


@contextmanager
def _patched() -> Iterator[None]:
    """How the compiler has to look at a kernel."""
    from torch.fx.experimental import _config

    # constants are constants, and two sizes that are equal now need not be equal later
    shapes = _config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
    with torch._dynamo.config.patch(specialize_float=True), shapes, _traced_once(), _read_once():
        yield


@contextmanager
def _read_once() -> Iterator[None]:
    """Let a GPU hold what `lanes.in_pieces` made for as many sums as are wanted of it.

    The compiler would see that a piece ends before its row does, and read it again for every sum.
    """
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    class Held(InductorChoices):
        @staticmethod
        def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
            usual = InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)
            return bool(usual or (features.reduction_numel == HELD and not cooperative_reduction))

    with V.set_choices_handler(Held()):
        yield


@contextmanager
def _traced_once() -> Iterator[None]:
    """Let the compiler remember what a value is made of, instead of following it again from each use.

    Uses of uses multiply: a polynomial in a polynomial takes it minutes.
    """
    from torch._inductor import ir, virtualized

    create = ir.Pointwise.create.__func__  # type: ignore[attr-defined]

    def remembering(cls: Any, **arguments: Any) -> Any:
        inner = arguments["inner_fn"]
        of_handler: list[Any] = [None]
        found: dict[tuple[Any, ...], Any] = {}

        def once(index: Sequence[Any]) -> Any:
            handler = virtualized.V.get_ops_handler()
            if of_handler[0] is not handler:
                of_handler[0] = handler
                found.clear()
            at = tuple(index)
            if at not in found:
                found[at] = inner(index)
            return found[at]

        return create(cls, **arguments | {"inner_fn": once})

    with mock.patch.object(ir.Pointwise, "create", classmethod(remembering)):
        yield


def _loadable(t: torch.Tensor | None) -> torch.Tensor | None:
    """Integers as the numbers that have their bits: the compiler copies integers before it loads them."""
    return t.view(torch.float32) if t is not None and t.dtype == torch.int32 else t


def _compile(
    function: Callable[..., Any], static: dict[str, Any], integers: Sequence[bool]
) -> Callable[..., Any]:
    def bound(*tensors: torch.Tensor | None) -> Any:
        given = (
            t.view(torch.int32) if t is not None and integer else t
            for t, integer in zip(tensors, integers, strict=True)
        )
        return function(*given, **static)

    # the compiler counts recompilations by code object: every form gets its own
    code = bound.__code__.replace()
    apart = FunctionType(code, bound.__globals__, function.__name__, None, bound.__closure__)
    return torch.compile(apart, dynamic=True, fullgraph=True, options=_OPTIONS)
