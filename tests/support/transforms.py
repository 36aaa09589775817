"""Settings in which torch calls a function of tensors: vmap, compiled, meta, views; and its host reads.

Each setting calls the function and compares the result with the plain call, so that a test needs one line:

    SETTINGS[name](fn, lambda length: (logp(2, length), ref_logp(2, length)))

``arguments(length)`` returns positional arguments. Tensors among them have a batch axis first; everything
else is passed on unchanged.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., torch.Tensor]
Arguments = Callable[[int], tuple[Any, ...]]
LENGTHS = (3, 5, 8)
GRAPHS = 2  # for all lengths together
READS = ("aten._local_scalar_dense", "aten.is_nonzero", "aten.item", "aten.nonzero", "aten.equal")


class HostReads(TorchDispatchMode):
    """Counts operators that wait for a device, because their results are read on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the operator if it is one of ``READS``, also a boolean mask that selects entries."""
        name = str(func).rsplit(".", 1)[0]
        masks = name in ("aten.index", "aten.masked_select") and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool
            for i in (args[1] if name == "aten.index" else args[1:])
        )
        if name in READS or masks:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def host_reads(fn: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """Return the names of the operators by which one call reads values on the host."""
    with HostReads() as mode:
        fn(*args, **options)
    return mode.names


def mapped(fn: Function, arguments: Arguments) -> None:
    """Compare ``torch.func.vmap`` over the first axis with the call on each row, value and gradient."""
    args = arguments(LENGTHS[0])
    axes = tuple(0 if isinstance(x, torch.Tensor) else None for x in args)
    rows = [tuple(x[i] if isinstance(x, torch.Tensor) else x for x in args) for i in range(len(args[0]))]
    same(torch.func.vmap(fn, in_dims=axes)(*args), torch.stack([fn(*row) for row in rows]))

    def slope(*row: Any) -> torch.Tensor:
        return torch.func.grad(lambda x: fn(x, *row[1:]).sum())(row[0])

    same(torch.func.vmap(slope, in_dims=axes)(*args), torch.stack([slope_of(fn, row) for row in rows]))


def slope_of(fn: Function, args: tuple[Any, ...]) -> torch.Tensor:
    """Return the gradient of the sum of the result with respect to the first argument, by autograd."""
    return slope_and_value(fn, args)[0]


def slope_and_value(fn: Function, args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return that gradient and the result, of one call."""
    leaf = args[0].detach().clone().requires_grad_()
    value = fn(leaf, *args[1:])
    if not value.requires_grad:
        return torch.zeros_like(leaf), value
    (slope,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
    return torch.zeros_like(leaf) if slope is None else slope, value.detach()


def compiled(fn: Function, arguments: Arguments) -> None:
    """Compare a graph without breaks with the plain call at three lengths: value and gradient.

    The caller asks for ``dynamic=True``: lengths and numbers of Python are symbols from the first call on.
    """
    in_graphs(fn, arguments, dynamic=True)


def compiled_by_default(fn: Function, arguments: Arguments) -> None:
    """Do the same for a caller who asks for nothing: one graph is of the first length, one of any."""
    in_graphs(fn, arguments, dynamic=None)


def in_graphs(fn: Function, arguments: Arguments, dynamic: bool | None) -> None:
    """Compare graphs and the plain call at every length, and count the graphs."""
    if "tests.support.typecheck" in sys.modules and tuple(map(int, torch.__version__.split(".")[:2])) < (
        2,
        13,
    ):
        import pytest

        pytest.skip("torch before 2.13 cannot trace the tests' checker of types")
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    in_graph = torch.compile(fn, fullgraph=True, backend=backend, dynamic=dynamic)
    with warnings.catch_warnings(), unchecked_methods():
        warnings.simplefilter("ignore")
        for length in LENGTHS:
            args = arguments(length)
            for result, expected in zip(
                slope_and_value(in_graph, args), slope_and_value(fn, args), strict=True
            ):
                same(result, expected)
    assert len(graphs) <= GRAPHS, f"{len(graphs)} graphs: expected {GRAPHS}"


@contextmanager
def unchecked_methods() -> Iterator[None]:
    """Take the tests' checker of types off methods: a graph cannot trace it on an object that it makes."""
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] == "kl_companion"]
    values = [x for m in modules for x in vars(m).values() if isinstance(x, type)]
    before = [
        (c, vars(c).copy()) for c in {*values} if str(c.__module__).startswith("kl_companion.estimators")
    ]
    for c, members in before:
        for name, x in members.items():
            if isinstance(x, FunctionType):
                setattr(c, name, inspect.unwrap(x))
            elif isinstance(x, property) and x.fget is not None:
                setattr(c, name, property(inspect.unwrap(x.fget)))
    try:
        yield
    finally:
        for c, members in before:
            for name, x in members.items():
                if isinstance(x, FunctionType | property):
                    setattr(c, name, x)


def without_numbers(fn: Function, arguments: Arguments) -> None:
    """Compare the shape and dtype of the result on the device "meta", where no tensor has values."""
    args = arguments(LENGTHS[0])
    plain = fn(*args)
    empty = fn(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in args))
    assert empty.device.type == "meta"
    assert (empty.shape, empty.dtype) == (plain.shape, plain.dtype)


def on_views(fn: Function, arguments: Arguments) -> None:
    """Compare views of other memory (transposed, every second entry, expanded) with contiguous copies."""
    args = arguments(LENGTHS[0])
    for view in (transposed, strided):
        same(fn(*(view(x) if isinstance(x, torch.Tensor) else x for x in args)), fn(*args))
    wide = tuple(x[:1].expand(3, *x.shape[1:]) if isinstance(x, torch.Tensor) else x for x in args)
    same(fn(*wide), fn(*(x.clone() if isinstance(x, torch.Tensor) else x for x in wide)))


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers with the axes in the opposite order in memory."""
    axes = [*range(x.ndim)][::-1]
    return x.permute(axes).contiguous().permute(axes)


def strided(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers with unused ones in between."""
    wide = x.repeat_interleave(2, -1)
    return wide[..., ::2]


def in_inference(fn: Function, arguments: Arguments) -> None:
    """Compare tensors made in inference mode with ordinary ones, inside the mode and after it."""
    plain = fn(*arguments(LENGTHS[0]))
    with torch.inference_mode():
        args = arguments(LENGTHS[0])
        same(fn(*args), plain)
    same(fn(*args), plain)


def under_default_dtypes(fn: Function, arguments: Arguments) -> None:
    """Compare the results under both default dtypes, which no formula may depend on."""
    args = arguments(LENGTHS[0])
    results = []
    for dtype in (torch.float32, torch.float64):
        with default_dtype(dtype):
            results.append(fn(*args))
    assert results[0].dtype == results[1].dtype
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Work under another default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def same(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare two results up to a few roundings of their dtype; NaN equals NaN."""
    assert result.dtype == expected.dtype
    eps = torch.finfo(expected.dtype).eps if expected.is_floating_point() else 0.0
    torch.testing.assert_close(result, expected, rtol=64 * eps, atol=256 * eps, equal_nan=True)


SETTINGS: dict[str, Callable[[Function, Arguments], None]] = {
    "vmap": mapped,
    "compile": compiled,
    "meta": without_numbers,
    "views": on_views,
    "inference": in_inference,
    "default dtype": under_default_dtypes,
}
