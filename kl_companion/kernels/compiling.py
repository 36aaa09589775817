"""Eager or compiled: which form of a kernel runs, and the compiled forms, one for each kind of input.

PyTorch's compiler makes C++ of a kernel on a CPU; a GPU has kernels of its own, see
`kl_companion.kernels.gpu`. What the compiler made is kept on disk by its own cache, so that later processes
load it.
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
from torch.utils.dlpack import from_dlpack, to_dlpack

from kl_companion.checks import check_choice

Backend = Literal["auto", "compiled", "eager"]
BACKENDS = get_args(Backend)
_WORTH = 1 << 20  # entries of the logits from which "auto" compiles: fewer hardly repay it
_PART = 1 << 16  # entries that the eager form works on at a time
_PATIENCE = 3.0  # seconds after which a compilation is announced
_SLOW = "compiling the kernel %s: once on this machine for these dtypes, later processes load it from disk"
_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    "realize_opcount_threshold": 1000,  # one loop, nothing stored in between
    "realize_reads_threshold": 100,
}
_CONTRACT = "cpp.enable_floating_point_contract_flag"
_ONE_AT_A_TIME = threading.RLock()
_log = logging.getLogger(__name__)


@cache
def compiler_found(device: str) -> bool:
    """Whether a compiler for a type of device is found here; logged once where it is not."""
    found = _cpp_compiler() if device == "cpu" else device == "cuda" and find_spec("triton") is not None
    if not found:
        missing = "a C++ compiler" if device == "cpu" else "Triton"
        _log.warning("the eager kernels are used on %s: %s is missing", device, missing)
    return found


def _cpp_compiler() -> bool:
    try:
        from torch._inductor import config
    except Exception:
        return True  # the attempt to compile says why this failed, and the eager form runs
    candidates = config.cpp.cxx if isinstance(config.cpp.cxx, (tuple, list)) else (config.cpp.cxx,)
    return any(name and shutil.which(name) for name in candidates)


def compiles(backend: str, entries: int, device: torch.device) -> bool | None:
    """Whether the compiled form runs for logits of so many entries.

    "auto" takes it where a compiler is found and the logits are large, unless a mode of PyTorch watches every
    operator, which no compiled form shows.

    Raises:
        ValueError: an unknown backend, or "compiled" where no compiler is found.
    """
    check_choice("backend", backend, BACKENDS)
    if torch.compiler.is_compiling():  # for "auto" the operator of the graph asks again: it knows the sizes
        return None if backend == "auto" else backend == "compiled"
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
        self._made: dict[tuple[Any, ...], Callable[..., Any] | None] = {}  # None: the compiler failed

    def __call__(self, compiled: bool, *tensors: torch.Tensor | None, **static: Any) -> Any:
        """Run it, on tensors whose sizes may change from call to call.

        Where the compiler fails the eager form runs, now and in later calls of this kind.
        """
        if compiled and all(t is None or _is_regular(t) for t in tensors):
            kinds = tuple(None if t is None else _kind(t) for t in tensors)
            key = (kinds, torch.get_num_threads(), *static.items())
            try:
                with torch.inference_mode(False), torch.no_grad():
                    if key not in self._made:
                        return self._first(key, tensors, static)
                    form = self._made[key]
                    if form is not None:
                        return form(*map(_plain, tensors))
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self._made[key] = None
                warn_of(error)
        return self._in_parts(tensors, static)

    def _first(
        self, key: tuple[Any, ...], tensors: tuple[torch.Tensor | None, ...], static: dict[str, Any]
    ) -> Any:
        plain = [_plain(t) for t in tensors]
        integers = [t is not None and t.dtype == torch.int32 for t in tensors]
        slow = threading.Timer(_PATIENCE, _log.warning, [_SLOW, self.function.__name__])
        slow.daemon = True
        slow.start()
        try:
            with _ONE_AT_A_TIME, _patched():
                self._made[key], results = _compile(self.function, static, integers, plain)
        finally:
            slow.cancel()
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


_SHORTEST = 3  # entries of a row: of fewer a half has a size of 1


def _is_regular(t: torch.Tensor) -> bool:
    """Whether a CPU has it, and no size is one that the compiler makes another form for; else it is eager."""
    return t.device.type == "cpu" and 1 not in t.shape and (t.ndim < 2 or t.shape[-1] >= _SHORTEST)


def _kind(t: torch.Tensor) -> tuple[object, ...]:
    """Return what a form depends on: dtype and layout."""
    return t.dtype, t.ndim, t.is_contiguous() or tuple(min(step, 2) for step in t.stride())


def _plain(t: torch.Tensor | None) -> torch.Tensor | None:
    """Return the same memory as a tensor that has nothing else for a guard to depend on.

    The result needs no gradient, is a view of nothing, and shares its storage with no other argument.
    Integers become floats of the same bits: the compiler copies integers before it loads them.
    """
    if t is None:
        return None
    t = t.detach()
    t = t.view(torch.float32) if t.dtype == torch.int32 else t
    return from_dlpack(to_dlpack(t))


_CAUSES: set[str] = set()


def warn_of(error: Exception) -> None:
    """Log that eager kernels run because of an error, once in a process for each type of error."""
    cause = getattr(error, "inner_exception", None) or error.__cause__ or error
    name = type(cause).__name__
    if name not in _CAUSES:
        _CAUSES.add(name)
        message = next(iter(str(cause).splitlines()), "")
        _log.warning("the eager kernels are used, because the compiler failed: %s: %s", name, message)


@contextmanager
def _patched() -> Iterator[None]:
    """Patch internals of the compiler for the kernels; a release that has moved one makes this raise."""
    from torch.fx.experimental import _config

    # constants are constants, and two sizes that are equal now need not be equal later
    shapes = _config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
    with torch._dynamo.config.patch(specialize_float=True), shapes, _traced_once():
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


def _options() -> dict[str, str | int | bool | Callable[..., Any]]:
    """Return options of the compiler: a product and a sum may be rounded once, as its release writes it."""
    from torch._inductor import config

    return {
        **_OPTIONS,
        _CONTRACT: "fast" if isinstance(config.cpp.enable_floating_point_contract_flag, str) else True,
    }


def _compile(
    function: Callable[..., Any],
    static: dict[str, Any],
    integers: Sequence[bool],
    tensors: Sequence[torch.Tensor | None],
) -> tuple[Callable[..., Any], Any]:
    """Return the compiled form of a function, and its results for some tensors of `_plain`."""

    def bound(*tensors: torch.Tensor | None) -> Any:
        given = (
            t.view(torch.int32) if t is not None and integer else t
            for t, integer in zip(tensors, integers, strict=True)
        )
        return function(*given, **static)

    # the compiler counts recompilations by code object: every form gets its own
    source = FunctionType(
        bound.__code__.replace(), bound.__globals__, function.__name__, None, bound.__closure__
    )
    guarded = torch.compile(source, dynamic=True, fullgraph=True, options=_options())
    results = guarded(*tensors)
    entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(source.__code__)
    if len(entries) != 1:
        return guarded, results
    # A form serves all tensors of a kind, so it runs without guards: they would ask for the default
    # dtype and the modes of PyTorch of now, compile again where these differ, and after eight times raise.
    form = FunctionType(entries[0].code, source.__globals__, function.__name__, None, source.__closure__)
    return form, results
