"""The methods and operators of tensors, hung on the class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kl_book.paste.stand_in import choices, factories, indexing, ordering, products, shaping
from kl_book.paste.stand_in import elementwise as each
from kl_book.paste.stand_in import reductions as along
from kl_book.paste.stand_in.in_place import overwrite
from kl_book.paste.stand_in.kinds import BOOL
from kl_book.paste.stand_in.modes import seen
from kl_book.paste.stand_in.repeated import once
from kl_book.paste.stand_in.tensor import NotInPage, Tensor, tensor_of

# functions that torch has under the same name, of a tensor first
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(each, name)
        for name in (
            *("exp", "expm1", "exp2", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"),
            *("sigmoid", "tanh", "sin", "cos", "erf", "neg", "sign", "square", "relu", "floor", "ceil"),
            *("trunc", "positive", "isnan", "isinf", "isfinite", "isneginf", "isposinf"),
            *("logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not", "bitwise_and"),
            *("bitwise_or", "bitwise_xor", "add", "sub", "mul", "div", "maximum", "minimum", "remainder"),
            *("floor_divide", "xlogy", "logaddexp", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "isclose"),
            "lgamma",
        )
    },
    **{name: getattr(choices, name) for name in ("clamp", "masked_fill", "nonzero", "lerp", "nan_to_num")},
    **{
        name: getattr(indexing, name)
        for name in (
            *("gather", "take_along_dim", "scatter", "scatter_add", "index_add", "masked_select", "triu"),
            *("tril", "unique"),
        )
    },
    **{name: getattr(ordering, name) for name in ("sort", "argsort", "topk")},
    "abs": each.absolute,
    "absolute": each.absolute,
    "negative": each.neg,
    "round": each.round_,
    "pow": each.power,
    "subtract": each.sub,
    "multiply": each.mul,
    "divide": each.div,
    "true_divide": each.div,
    "clip": choices.clamp,
    "greater": each.gt,
    "less": each.lt,
    **{
        name: getattr(along, name)
        for name in (
            *("mean", "prod", "amax", "amin", "aminmax", "argmax", "argmin", "count_nonzero", "var", "std"),
            *("norm", "logsumexp", "log_softmax", "softmax", "cumsum"),
        )
    },
    "sum": along.sum_,
    "max": ordering.max_,
    "min": ordering.min_,
    "any": along.any_,
    "all": along.all_,
    **{
        name: getattr(shaping, name)
        for name in (
            *("reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "permute", "transpose", "movedim"),
            *("flip", "roll", "repeat_interleave", "split", "chunk", "unbind", "narrow", "select", "diff"),
            "index_select",
        )
    },
    "concat": shaping.cat,
    "swapaxes": shaping.transpose,
    "matmul": products.matmul,
    "mm": products.matmul,
    "bmm": products.matmul,
    "mv": products.matmul,
    "dot": products.dot,
    "outer": products.outer,
}


def clamp_min(x: Tensor, min: Any) -> Tensor:
    """At least so much."""
    return choices.clamp(x, min=min)


def clamp_max(x: Tensor, max: Any) -> Tensor:
    """At most so much."""
    return choices.clamp(x, max=max)


FUNCTIONS |= {"clamp_min": clamp_min, "clamp_max": clamp_max}
FUNCTIONS = {name: seen(function, name) for name, function in FUNCTIONS.items()}
_OF_TENSORS: dict[str, Callable[..., Any]] = {  # and not functions of torch
    "view": shaping.reshape,
    "view_as": shaping.view_as,
    "reshape_as": shaping.view_as,
    "expand": shaping.expand,
    "expand_as": shaping.expand_as,
    "repeat": shaping.repeat,
    "new_full": factories.new_full,
    "new_zeros": factories.new_zeros,
    "new_ones": factories.new_ones,
    "new_tensor": factories.new_tensor,
    "where": lambda x, condition, other: choices.where(condition, x, other),
    "fill": lambda x, value: _filled(x, value),
    "zero": lambda x: _filled(x, 0),
    "copy": lambda x, source, *_: _copied(x, source),
}
METHODS = {
    **{name: function for name, function in FUNCTIONS.items() if name != "concat"},
    **{name: seen(function, name) for name, function in _OF_TENSORS.items()},
}
_IN_PLACE = (
    *("exp", "log", "sqrt", "neg", "sigmoid", "tanh", "relu", "add", "sub", "mul", "div", "pow", "clamp"),
    *("clamp_min", "clamp_max", "masked_fill", "scatter", "scatter_add", "index_add", "logical_and"),
    *("logical_or", "logical_not", "abs", "square", "nan_to_num", "fill", "zero", "copy"),
)


def _in_place(name: str) -> Callable[..., Tensor]:
    def apply(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return overwrite(x, METHODS[name], *args, name=f"{name}_", **kwargs)

    return apply


def _filled(x: Tensor, value: Any) -> Tensor:
    return choices.where(factories.zeros_like(x, dtype=BOOL), x, tensor_of(value).as_kind(x.kind))


def _copied(x: Tensor, source: Tensor, *_: Any) -> Tensor:
    return shaping.expand(source.as_kind(x.kind), x.size_).clone()


def _reversed(operation: Callable[..., Tensor]) -> Callable[[Tensor, Any], Tensor]:
    def apply(x: Tensor, other: Any) -> Tensor:
        return operation(other, x)

    return apply


_OPERATORS = {
    **{"add": each.add, "sub": each.sub, "mul": each.mul, "truediv": each.div, "pow": each.power},
    **{"mod": each.remainder, "floordiv": each.floor_divide, "matmul": products.matmul},
    **{"and": each.bitwise_and, "or": each.bitwise_or, "xor": each.bitwise_xor},
}


def _attribute(x: Tensor, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotInPage(f"Tensor.{name}")


_ATTRIBUTES: dict[str, Any] = {
    **{f"__{name}__": once(getattr(each, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{
        "__neg__": once(each.neg),
        "__pos__": once(each.positive),
        "__abs__": once(each.absolute),
        "__invert__": once(each.bitwise_not),
    },
    **{"__getitem__": once(indexing.get), "__setitem__": indexing.set_, "__getattr__": _attribute},
    "T": property(lambda x: shaping.permute(x, *reversed(range(x.ndim)))),
    "mT": property(lambda x: shaping.transpose(x, -2, -1)),
    "t": lambda x: x.T,
}
_CONVERSIONS = (
    *("float", "double", "half", "bfloat16", "long", "int", "bool", "to", "type", "detach", "clone"),
)


def hang() -> None:
    """Give the class its methods."""
    for name, function in METHODS.items():
        setattr(Tensor, name, function)
    for name in _CONVERSIONS:
        setattr(Tensor, name, seen(getattr(Tensor, name), name))
    for name in _IN_PLACE:
        setattr(Tensor, f"{name}_", _in_place(name))
    for name, operation in _OPERATORS.items():
        setattr(Tensor, f"__{name}__", seen(operation, f"__{name}__"))
        setattr(Tensor, f"__r{name}__", seen(_reversed(operation), f"__r{name}__"))
        setattr(Tensor, f"__i{name}__", _augmented(operation, name))
    for name, value in _ATTRIBUTES.items():
        setattr(Tensor, name, value)


def _augmented(operation: Callable[..., Tensor], name: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, other: overwrite(x, operation, other, name=f"x {name}= y")


hang()
