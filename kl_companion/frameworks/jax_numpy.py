"""Operations of PyTorch under the names of JAX and MLX, to run losses that are written in them.

Neither is installed. ``jnp``, ``jax``, ``optax`` and the modules of `STAND_INS` are the functions below,
nearly all of them one function of PyTorch. The tests compare them with numpy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from kl_companion.auditing.reading.arguments import Outputs
from kl_companion.auditing.reading.batches import Model, UserBatch
from kl_companion.auditing.reading.stand_ins import Absent, AbsentModule

# functions of arrays or numbers that PyTorch has under the same name, and under another
_SAME = """abs ceil cos exp expm1 floor isfinite isinf isnan log log10 log1p log2 logaddexp logical_and
    logical_not logical_or logical_xor matmul maximum minimum nan_to_num ones_like round sigmoid
    sign sin sqrt square tanh where zeros_like"""
_WITH_NUMBERS = "cumprod cumsum diag diff einsum eye full_like prod reshape roll stack tril triu"
_OTHER = """absolute=abs add=add concatenate=cat divide=true_divide dot=matmul equal=eq greater=gt
    greater_equal=ge less=lt less_equal=le multiply=mul negative=neg not_equal=ne power=pow
    reciprocal=reciprocal rsqrt=rsqrt subtract=sub"""
_REDUCED = "sum mean max min logsumexp"
_DTYPES = "int8 int32 int64 bfloat16 float16 float64 inf pi"


def float32(x: float) -> torch.Tensor:
    """A number in single precision; JAX uses the name as a dtype as well."""
    return torch.tensor(x, dtype=torch.float32)


class _At:
    """``x.at[index].set(y)`` and its like."""

    def __init__(self, x: torch.Tensor, index: Any = None) -> None:
        self._x, self._index = x, index

    def __getitem__(self, index: Any) -> _At:
        return _At(self._x, index)

    def _changed(self, change: Callable[[torch.Tensor, Any], Any], y: Any) -> torch.Tensor:
        out = self._x.clone()
        out[self._index] = change(out[self._index], y)
        return out

    def set(self, y: Any) -> torch.Tensor:
        """The array with other entries."""
        return self._changed(lambda _, new: new, y)

    def add(self, y: Any) -> torch.Tensor:
        """The array with something added to entries."""
        return self._changed(lambda old, new: old + new, y)

    def multiply(self, y: Any) -> torch.Tensor:
        """The array with entries multiplied."""
        return self._changed(lambda old, new: old * new, y)


class Array(torch.Tensor):
    """A tensor with the methods of JAX's and MLX's arrays; what is computed of it is one too."""

    def astype(self, dtype: Any) -> torch.Tensor:
        """The same numbers in another dtype."""
        return astype(self, dtype)

    @property
    def at(self) -> _At:
        """Entries to change, in a copy."""
        return _At(self)


def array(x: Any, dtype: Any = None) -> torch.Tensor:
    """The tensor, list or number as an `Array`, its gradient kept."""
    kept = torch.as_tensor(x).as_subclass(Array)
    return kept if dtype is None else astype(kept, dtype)


def astype(x: torch.Tensor, dtype: Any) -> torch.Tensor:
    """The tensor in a dtype of PyTorch, or in `float32`."""
    return x.to(
        {float32: torch.float32, bool: torch.bool, int: torch.int64, float: torch.float64}.get(dtype, dtype)
    )


def clip(x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> torch.Tensor:
    """The tensor or number, between two bounds."""
    low, high = (a if b is None else b for a, b in ((a_min, min), (a_max, max)))
    return torch.clamp(torch.as_tensor(x), min=low, max=high)


def softmax_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of the distributions ``labels``, [..., vocab]; [...]."""
    return -(labels * logits.log_softmax(-1)).sum(-1)


def integer_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of the tokens ``labels``, [...]; [...]."""
    return -take_along_axis(logits.log_softmax(-1), labels.unsqueeze(-1), -1).squeeze(-1)


def kl_divergence(log_predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """KL(targets || predictions) of distributions [..., vocab]; [...]."""
    return (torch.xlogy(targets, targets) - targets * log_predictions).sum(-1)


def kl_divergence_of_logs(log_predictions: torch.Tensor, log_targets: torch.Tensor) -> torch.Tensor:
    """KL(targets || predictions) of logarithms of distributions [..., vocab]; [...]."""
    return (log_targets.exp() * (log_targets - log_predictions)).sum(-1)


def take_along_axis(x: torch.Tensor, indices: torch.Tensor, axis: int = -1) -> torch.Tensor:
    """Entries of ``x`` at indices of one axis."""
    return x.gather(axis, indices.long())


def _arrays(function: Any) -> Callable[..., Any]:
    """A function of PyTorch that takes numbers where it takes tensors."""

    @functools.wraps(function)
    def of_arrays(*args: Any, **kwargs: Any) -> Any:
        return function(*(array(x) if isinstance(x, (int, float)) else x for x in args), **kwargs)

    return of_arrays


def _reduced(name: str) -> Callable[..., Any]:
    def reduced(x: Any, axis: Any = None, keepdims: bool = False, where: Any = None, **_: Any) -> Any:
        """Along axes, all by default; where a condition holds, for sums and means."""
        x = torch.as_tensor(x)
        axes = tuple(range(x.ndim)) if axis is None else axis
        if where is not None and name in ("sum", "mean"):
            total = torch.sum(torch.where(where, x, 0.0), axes, keepdim=keepdims)
            count = torch.sum(where.expand_as(x).to(x.dtype), axes, keepdim=keepdims)
            return total if name == "sum" else total / count
        if name in ("mean", "logsumexp") and not x.is_floating_point():
            x = x.double()
        return getattr(torch, name)(x, axes, keepdim=keepdims) if x.ndim else x

    return reduced


def _deviation(name: str) -> Callable[..., Any]:
    def deviation(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
        """Of the whole population unless ``ddof`` says otherwise."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return getattr(torch.Tensor, name)(x, dim=axes, correction=ddof, keepdim=keepdims)

    return deviation


def _transposed(x: torch.Tensor, *axes: Any) -> torch.Tensor:
    """The axes in another order."""
    return x.permute(*(axes or range(x.ndim - 1, -1, -1)))


for _name in ("std", "var"):
    setattr(Array, _name, _deviation(_name))
for _name in ("max", "min"):
    setattr(Array, _name, _reduced(f"a{_name}"))
setattr(Array, "transpose", _transposed)  # noqa: B010 (its arguments are not PyTorch's)


def _loss(values: torch.Tensor, reduction: str) -> torch.Tensor:
    return values if reduction == "none" else values.mean() if reduction == "mean" else values.sum()


def _decorator(function: Any = None, *_: Any, **__: Any) -> Any:
    """``jax.jit`` and its like, with options or without: the function as it is."""
    return function if callable(function) else _decorator


def _stopped(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x


_NUMPY: dict[str, Any] = {n: _arrays(getattr(torch, n)) for n in _SAME.split()}
_NUMPY |= {n: getattr(torch, n) for n in _WITH_NUMBERS.split()}
_NUMPY |= {n: _arrays(getattr(torch, other)) for n, _, other in (x.partition("=") for x in _OTHER.split())}
_NUMPY |= {
    n: _reduced(other) for n, other in (("sum", "sum"), ("mean", "mean"), ("max", "amax"), ("min", "amin"))
}
_NUMPY |= {n: _deviation(n) for n in ("std", "var")} | {n: getattr(torch, n) for n in _DTYPES.split()}
_NUMPY |= {
    "array": array,
    "asarray": array,
    "arange": lambda *a, **k: array(torch.arange(*a)),
    "argmax": lambda x, axis=None, **_: torch.argmax(x, axis),
    "astype": astype,
    "bool_": torch.bool,
    "broadcast_to": torch.broadcast_to,
    "clip": clip,
    "expand_dims": lambda x, axis: x.unsqueeze(axis),
    "flip": lambda x, axis=None: torch.flip(x, tuple(range(x.ndim)) if axis is None else (axis,)),
    "float32": float32,
    "full": lambda shape, value, dtype=None: array(torch.full(_shape(shape), value)),
    "ndarray": Array,
    "newaxis": None,
    "ones": lambda shape, dtype=None: array(torch.ones(_shape(shape))),
    "softmax": lambda x, axis=-1: x.softmax(axis),
    "split": lambda x, parts, axis=0: torch.tensor_split(x, parts, axis),
    "squeeze": lambda x, axis=None: x.squeeze() if axis is None else x.squeeze(axis),
    "stop_gradient": _stopped,
    "swapaxes": torch.swapaxes,
    "take_along_axis": take_along_axis,
    "transpose": lambda x, axes=None: _transposed(x, *(axes or ())),
    "zeros": lambda shape, dtype=None: array(torch.zeros(_shape(shape))),
}


def _shape(shape: Any) -> Sequence[int]:
    return [shape] if isinstance(shape, int) else shape


_NN = {
    "gelu": torch.nn.functional.gelu,
    "log_sigmoid": torch.nn.functional.logsigmoid,
    "log_softmax": lambda x, axis=-1: x.log_softmax(axis),
    "logsumexp": _reduced("logsumexp"),
    "one_hot": lambda x, num_classes, **_: torch.nn.functional.one_hot(x, num_classes).to(torch.float64),
    "relu": _arrays(torch.relu),
    "sigmoid": _arrays(torch.sigmoid),
    "softmax": lambda x, axis=-1: x.softmax(axis),
    "softplus": _arrays(torch.nn.functional.softplus),
}
jnp = AbsentModule("jax.numpy", _NUMPY)
jax = AbsentModule(
    "jax",
    {
        "Array": torch.Tensor,
        "checkpoint": _decorator,
        "jit": _decorator,
        "named_call": _decorator,
        "named_scope": Absent("jax.named_scope"),
        "nn": AbsentModule("jax.nn", _NN),
        "numpy": jnp,
        "lax": AbsentModule(
            "jax.lax",
            {"rsqrt": torch.rsqrt, "stop_gradient": _stopped, "top_k": torch.topk, "select": torch.where}
            | {"exp": torch.exp, "log": torch.log, "clamp": lambda low, x, high: clip(x, low, high)},
        ),
        "scipy": AbsentModule("jax.scipy", {"special": AbsentModule("jax.scipy.special", _NN | _NUMPY)}),
        "typing": AbsentModule("jax.typing", {"ArrayLike": Any}),
        "random": Absent("jax.random"),
        "tree_util": Absent("jax.tree_util"),
    },
)
_OPTAX: dict[str, Any] = {
    "convex_kl_divergence": kl_divergence,
    "kl_divergence": kl_divergence,
    "kl_divergence_with_log_targets": kl_divergence_of_logs,
    "softmax_cross_entropy": softmax_cross_entropy,
    "softmax_cross_entropy_with_integer_labels": integer_cross_entropy,
}
optax = AbsentModule("optax", _OPTAX | {"losses": AbsentModule("optax.losses", _OPTAX)})
_MLX_LOSSES = {
    "cross_entropy": lambda logits, targets, reduction="none", **_: _loss(
        integer_cross_entropy(logits, targets), reduction
    ),
    "kl_div_loss": lambda inputs, targets, axis=-1, reduction="none": _loss(
        (targets.exp() * (targets - inputs)).sum(axis), reduction
    ),
}
_PYTREE = {"dataclass": lambda cls=None, **_: dataclass(cls) if cls else dataclass, "field": Absent("field")}
_FLAX: Any = AbsentModule("flax")
_FLAX.struct = AbsentModule("flax.struct", _PYTREE)
STAND_INS: dict[str, ModuleType] = {
    m.__name__: m
    for m in (
        jnp,
        jax,
        jax.nn,
        jax.lax,
        jax.scipy,
        jax.scipy.special,
        jax.typing,
        optax,
        optax.losses,
        AbsentModule("mlx", {}),
        AbsentModule("mlx.core", _NUMPY | {"compile": _decorator, "eval": lambda *_: None}),
        AbsentModule(
            "mlx.nn", _NN | {"losses": AbsentModule("mlx.nn.losses", _MLX_LOSSES), "Module": object}
        ),
        AbsentModule("mlx.nn.losses", _MLX_LOSSES),
        _FLAX,
        _FLAX.struct,
        AbsentModule("chex", _PYTREE | {"Array": Array, "ArrayTree": Any, "Numeric": Any}),
    )
}


def on_arrays(function: Any) -> Any:
    """A function, or a class with methods, whose tensors arrive as arrays of JAX or MLX.

    Args:
        function: It stands in a file that was imported with `STAND_INS`.
    """
    if isinstance(function, type):
        for name in ("__call__", "forward"):
            if name in vars(function):
                setattr(function, name, on_arrays(vars(function)[name]))
        return function

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_arrived, args), **{n: _arrived(x) for n, x in kwargs.items()})

    return called


def _arrived(x: Any) -> Any:
    if isinstance(x, (UserBatch, Model)):
        vars(x)["converted"] = _arrived
        return x
    if isinstance(x, Outputs):
        return array(x.logits)
    return array(x) if isinstance(x, torch.Tensor) else x
