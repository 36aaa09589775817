"""`torch` and its modules as a loss imports them, made of what this folder has.

What is missing is said when it is asked for, with the command that audits the loss where all of torch is.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from kl_book.paste.stand_in import (
    choices,
    drawing,
    factories,
    functional,
    graph,
    kinds,
    linear,
    methods,
    modes,
    products,
    reductions,
    shaping,
)
from kl_book.paste.stand_in import elementwise as each
from kl_book.paste.stand_in.classes import Function, NeuralModule, Parameter
from kl_book.paste.stand_in.tensor import (
    Device,
    NotInPage,
    Size,
    Tensor,
    close,
    of_each_copy,
    started,
    tensor_of,
)

VERSION = "2.13.0"  # of the PyTorch that it agrees with


class StandIn(ModuleType):
    """A module that says what it lacks."""

    def __getattr__(self, name: str) -> Any:
        """Nothing that is here comes this way."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotInPage(f"{self.__name__}.{name}", self)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = False,
    materialize_grads: bool = False,
    **_: Any,
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad`, of first order.

    Raises:
        RuntimeError: an output has no gradient, or an input plays no part.
        NotInPage: a gradient of a gradient, or by one answer of a batch: its copies are one tensor here.
    """
    if create_graph:
        raise NotInPage("create_graph=True, a gradient of a gradient,")
    given = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    starts = [grad_outputs] if isinstance(grad_outputs, Tensor) else grad_outputs or [None] * len(given)
    pairs = [(t, started(t, s)) for t, s in zip(given, starts, strict=True)]
    if any(x.same is not None for x in wanted):
        raise NotInPage("torch.autograd.grad by one answer of a batch")
    if not all(x.requires_grad for x in wanted):
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    asked = [x if x.small is None else x.small for x in wanted]
    found = graph.gradients(pairs, {id(x) for x in asked})
    if materialize_grads:
        found |= {id(x): [0.0] * x.numel() for x in asked if id(x) not in found}
    if not allow_unused and any(id(x) not in found for x in asked):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior."
        )
    return tuple(
        None
        if id(of) not in found
        else Tensor(list(found[id(of)]), x.size_, kinds.FLOAT64)
        if of is x
        else of_each_copy(x, found[id(of)])
        for x, of in zip(wanted, asked, strict=True)
    )


def allclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all entries are close."""
    return all(close(a, b, rtol, atol, equal_nan) for a, b in zip(*_same(x, y), strict=True))


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are the same."""
    return x.size_ == y.size_ and x.entries == y.entries


def _same(x: Tensor, y: Tensor) -> tuple[list[Any], list[Any]]:
    x, y = shaping.broadcast_tensors(x, y)
    return x.entries, y.entries


def is_tensor(x: Any) -> bool:
    """Whether it is one."""
    return isinstance(x, Tensor)


def numel(x: Tensor) -> int:
    """How many entries."""
    return x.numel()


def promote_types(a: kinds.Kind, b: kinds.Kind) -> kinds.Kind:
    """The wider kind."""
    return max(a, b)


def _compiled(function: Any = None, **_: Any) -> Any:
    """`torch.compile` and `torch.jit.script`: the function itself."""
    return (lambda f: f) if function is None else function


def _context(*_: Any, **__: Any) -> Any:
    return nullcontext()


def _module(name: str, contents: dict[str, Any]) -> StandIn:
    found = StandIn(name)
    vars(found).update(contents)
    return found


def modules() -> dict[str, ModuleType]:
    """`torch`, `torch.nn`, `torch.nn.functional` and the others, by their names in ``sys.modules``."""
    f = _module("torch.nn.functional", {n: modes.seen(getattr(functional, n), n) for n in functional.NAMES})
    nn = _module("torch.nn", {"functional": f, "Module": NeuralModule, "Parameter": Parameter})
    autograd = _module("torch.autograd", {"grad": grad, "Function": Function})
    norms = {"vector_norm": _vector_norm, "norm": _vector_norm}
    linalg = _module("torch.linalg", norms | {"lstsq": linear.lstsq, "matrix_rank": linear.matrix_rank})
    overrides = _module("torch.overrides", {"TorchFunctionMode": modes.TorchFunctionMode})
    dispatch = _module("torch.utils._python_dispatch", {"TorchDispatchMode": modes.TorchDispatchMode})
    utils = _module("torch.utils", {"_python_dispatch": dispatch})
    special = _module("torch.special", {"xlogy": each.xlogy, "expm1": each.expm1, "log1p": each.log1p})
    cuda = _module("torch.cuda", {"is_available": lambda: False})
    amp = _module("torch.amp", {"autocast": _context})
    compiler = _module("torch.compiler", {"disable": _compiled, "is_compiling": lambda: False})
    distributed = _module(
        "torch.distributed", {"is_initialized": lambda: False, "is_available": lambda: False}
    )
    jit = _module("torch.jit", {"script": _compiled})
    torch = _module(
        "torch",
        {
            **kinds.NAMES,
            **methods.FUNCTIONS,
            **{n: getattr(factories, n) for n in _FACTORIES},
            "cat": modes.seen(shaping.cat, "cat"),
            "stack": modes.seen(shaping.stack, "stack"),
            "where": modes.seen(choices.where, "where"),
            "einsum": modes.seen(products.einsum, "einsum"),
            "broadcast_tensors": shaping.broadcast_tensors,
            **{"allclose": allclose, "equal": equal, "is_tensor": is_tensor, "numel": numel},
            "promote_types": promote_types,
            **{"Tensor": Tensor, "Size": Size, "device": Device, "dtype": kinds.Kind, "finfo": kinds.finfo},
            **{"iinfo": kinds.iinfo, "inf": math.inf, "nan": math.nan, "pi": math.pi, "e": math.e},
            **dict.fromkeys(("FloatTensor", "DoubleTensor", "LongTensor", "BoolTensor", "IntTensor"), Tensor),
            **{"no_grad": graph.switched(False), "inference_mode": graph.switched(False)},
            **{"enable_grad": graph.switched(True), "set_grad_enabled": graph.Set},
            **{"is_grad_enabled": graph.is_grad_enabled, "compile": _compiled, "autocast": _context},
            **{"nn": nn, "autograd": autograd, "linalg": linalg, "special": special, "cuda": cuda},
            **{name: getattr(drawing, name) for name in ("Generator", "rand", "randn", "randperm")},
            **{"get_default_dtype": lambda: kinds.FLOAT64, "set_default_dtype": lambda _: None},
            **{"overrides": overrides, "utils": utils, "ops": modes.Operators(), "__version__": VERSION},
            **{
                "amp": amp,
                "compiler": compiler,
                "distributed": distributed,
                "jit": jit,
                "tensor": factories.tensor,
            },
        },
    )
    all_ = [torch, nn, f, autograd, linalg, special, cuda, amp, compiler, distributed, jit]
    all_ += [overrides, utils, dispatch]
    for module in all_:
        module.__path__ = []  # so that what they lack is asked of them
    return {module.__name__: module for module in all_}


_FACTORIES = (
    *("full", "zeros", "ones", "full_like", "zeros_like", "ones_like", "arange", "linspace"),
    *("eye", "as_tensor"),
)


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return reductions.norm(tensor_of(x), ord, dim, keepdim)
