"""Operations entry by entry, each with its derivatives, as torch defines them at edges and ties."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from kl_book.paste.stand_in.arrays import Shape, spread, together
from kl_book.paste.stand_in.kinds import BOOL, FLOAT64, INT64, Kind
from kl_book.paste.stand_in.row_by_row import entrywise
from kl_book.paste.stand_in.tensor import NotInPage, Tensor, close, made, tensor_of

Entries = list[Any]
INF, NAN = math.inf, math.nan
Binary = Callable[[Any, Any], Any]


def wide(x: Tensor, shape: Shape) -> Entries:
    """The entries of a tensor, repeated to fill a shape."""
    at = spread(x.size_, shape)
    return x.entries if at is None else [x.entries[i] for i in at]


def narrow(g: Entries, shape: Shape, wider: Shape) -> Entries:
    """The contrary for gradients: what was repeated is added up."""
    at = spread(shape, wider)
    if at is None:
        return g
    found = [0.0] * math.prod(shape)
    for i, x in zip(at, g, strict=True):
        found[i] += x
    return found


# -- one tensor ----------------------------------------------------------------------------------------------


def unary(
    function: Callable[[Any], Any], slope: Callable[[float, float], float] | None, name: str
) -> Callable[..., Tensor]:
    """An operation of one tensor, floating; ``slope`` takes an entry and the result there."""

    @entrywise
    def apply(x: Any) -> Tensor:
        x = tensor_of(x).as_kind(FLOAT64)
        out = list(map(function, x.entries))

        def back(g: Entries) -> tuple[Entries | None]:
            if slope is None:
                return ([0.0] * len(g),)
            return ([a * slope(b, c) for a, b, c in zip(g, x.entries, out, strict=True)],)

        return made(out, x.size_, FLOAT64, (x,), back, name)

    apply.__name__ = name
    return apply


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return INF


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -INF if x == 0 else NAN


def _expm1(x: float) -> float:
    try:
        return math.expm1(x)
    except OverflowError:
        return INF


def _log1p(x: float) -> float:
    return math.log1p(x) if x > -1 else -INF if x == -1 else NAN


def _sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else NAN


def divide(x: float, y: float) -> float:
    """A quotient of floating numbers, infinite or NaN where the divisor is 0."""
    try:
        return x / y
    except ZeroDivisionError:
        sign = math.copysign(1.0, x) * math.copysign(1.0, y)
        return NAN if x == 0 or x != x else sign * INF


def _sigmoid(x: float) -> float:
    return 1 / (1 + _exp(-x)) if x >= 0 else _exp(x) / (1 + _exp(x))


def _logsigmoid(x: float) -> float:
    return min(x, 0.0) - math.log1p(_exp(-abs(x))) if x == x else NAN


def _softplus(x: float) -> float:
    return -_logsigmoid(-x) if x <= 20 else x  # torch's threshold


def _sign(x: float) -> float:
    return float((x > 0) - (x < 0))


def _round(x: float) -> float:
    return x if x != x or abs(x) == INF else float(round(x))


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: x if x != x or abs(x) == INF else float(function(x))


exp = unary(_exp, lambda _, y: y, "exp")
expm1 = unary(_expm1, lambda _, y: y + 1, "expm1")
exp2 = unary(lambda x: _exp(x * math.log(2)), lambda _, y: y * math.log(2), "exp2")
log = unary(_log, lambda x, _: divide(1.0, x), "log")
log2 = unary(lambda x: _log(x) / math.log(2), lambda x, _: divide(1 / math.log(2), x), "log2")
log10 = unary(lambda x: _log(x) / math.log(10), lambda x, _: divide(1 / math.log(10), x), "log10")
log1p = unary(_log1p, lambda x, _: divide(1.0, x + 1), "log1p")
sqrt = unary(_sqrt, lambda _, y: divide(0.5, y), "sqrt")
rsqrt = unary(lambda x: divide(1.0, _sqrt(x)), lambda x, y: divide(-0.5 * y, x), "rsqrt")
reciprocal = unary(lambda x: divide(1.0, x), lambda _, y: -y * y, "reciprocal")
sigmoid = unary(_sigmoid, lambda _, y: y * (1 - y), "sigmoid")
logsigmoid = unary(_logsigmoid, lambda x, _: _sigmoid(-x), "logsigmoid")
softplus = unary(_softplus, lambda x, _: 1.0 if x > 20 else _sigmoid(x), "softplus")
tanh = unary(math.tanh, lambda _, y: 1 - y * y, "tanh")
sin = unary(math.sin, lambda x, _: math.cos(x), "sin")
cos = unary(math.cos, lambda x, _: -math.sin(x), "cos")
erf = unary(math.erf, lambda x, _: 2 / math.sqrt(math.pi) * _exp(-x * x), "erf")


def _no_slope(*_: float) -> float:
    raise NotInPage("The gradient of torch.lgamma")


lgamma = unary(lambda x: INF if x <= 0 and x == int(x) else math.lgamma(x), _no_slope, "lgamma")


def _kept(
    function: Callable[[Any], Any], slope: Callable[[float, float], float] | None, name: str
) -> Callable[..., Tensor]:
    """An operation of one tensor that leaves whole numbers whole."""
    floating = unary(function, slope, name)

    @entrywise
    def apply(x: Any) -> Tensor:
        x = tensor_of(x)
        if x.kind is FLOAT64:
            return floating(x)
        return Tensor([int(function(v)) for v in x.entries], x.size_, INT64)

    apply.__name__ = name
    return apply


absolute = _kept(abs, lambda x, _: _sign(x), "abs")
neg = _kept(operator.neg, lambda *_: -1.0, "neg")
sign = _kept(_sign, None, "sign")
square = _kept(lambda x: x * x, lambda x, _: 2 * x, "square")
relu = _kept(lambda x: type(x)(0) if x < 0 else x, lambda _, y: 0.0 if y <= 0 else 1.0, "relu")
floor = _kept(_whole(math.floor), None, "floor")
ceil = _kept(_whole(math.ceil), None, "ceil")
trunc = _kept(_whole(math.trunc), None, "trunc")
round_ = _kept(_round, None, "round")


def positive(x: Tensor) -> Tensor:
    """Itself."""
    return x


def _asked(function: Callable[[Any], bool]) -> Callable[[Any], Tensor]:
    @entrywise
    def apply(x: Any) -> Tensor:
        x = tensor_of(x)
        return Tensor(list(map(function, x.entries)), x.size_, BOOL)

    return apply


isnan = _asked(lambda x: x != x)
isinf = _asked(lambda x: abs(x) == INF)
isfinite = _asked(lambda x: x == x and abs(x) != INF)
isneginf = _asked(lambda x: x == -INF)
isposinf = _asked(lambda x: x == INF)
logical_not = _asked(lambda x: not x)


@entrywise
def bitwise_not(x: Any) -> Tensor:
    """~x."""
    x = tensor_of(x)
    if x.kind is FLOAT64:
        raise RuntimeError("~ (operator.invert) is only implemented on integer and Boolean-type tensors")
    return logical_not(x) if x.kind is BOOL else Tensor([~v for v in x.entries], x.size_, INT64)


# -- two tensors ---------------------------------------------------------------------------------------------


def binary(
    function: Binary,
    by_x: Binary | None,
    by_y: Binary | None,
    name: str,
    *,
    kind: Kind | None = None,
    least: Kind = INT64,
) -> Callable[..., Tensor]:
    """An operation of two tensors or numbers; the slopes take an entry of each.

    Args:
        function: Of two entries.
        by_x: Its derivative by the first, None for 0.
        by_y: By the second.
        name: Of the operation.
        kind: Of the result; None is the wider of the two.
        least: The narrowest kind that is worked in.
    """

    @entrywise
    def apply(x: Any, y: Any, **_: Any) -> Tensor:
        x, y = tensor_of(x), tensor_of(y)
        worked = max(x.kind, y.kind, least)
        x, y = x.as_kind(worked), y.as_kind(worked)
        shape = together(x.size_, y.size_)
        a, b = wide(x, shape), wide(y, shape)
        own = worked if kind is None else kind

        def back(g: Entries) -> tuple[Entries | None, Entries | None]:
            parts: list[Entries | None] = []
            for of, slope in ((x, by_x), (y, by_y)):
                if not of.requires_grad:
                    parts.append(None)
                elif slope is None:
                    parts.append([0.0] * len(of.entries))
                else:
                    whole = [c * slope(v, w) for c, v, w in zip(g, a, b, strict=True)]
                    parts.append(narrow(whole, of.size_, shape))
            return parts[0], parts[1]

        out = list(map(function, a, b))
        return made(list(map(bool, out)) if own is BOOL else out, shape, own, (x, y), back, name)

    apply.__name__ = name
    return apply


def _scaled(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """x + alpha y and its like."""

    def apply(x: Any, y: Any, *, alpha: float = 1, **_: Any) -> Tensor:
        return operation(x, y if alpha == 1 else mul(y, alpha))

    return apply


def _power(x: Any, y: Any) -> Any:
    try:
        found = x**y
    except ZeroDivisionError:
        return INF
    except OverflowError:
        return INF
    return NAN if isinstance(found, complex) else found


def _power_by_base(x: float, y: float) -> float:
    return 0.0 if y == 0 else y * _power(x, y - 1)


def _power_by_exponent(x: float, y: float) -> float:
    return 0.0 if x == 0 and y >= 0 else _power(x, y) * _log(x)


def larger(x: Any, y: Any) -> Any:
    """The larger of two entries; NaN where one is."""
    return x if x != x or x >= y else y


def smaller(x: Any, y: Any) -> Any:
    """The smaller of two entries; NaN where one is."""
    return x if x != x or x <= y else y


def _remainder(x: Any, y: Any) -> Any:
    return NAN if y == 0 and isinstance(x, float) else x % y


def _floor_divide(x: Any, y: Any) -> Any:
    return x // y if y else divide(x, y)


def _xlogy(x: float, y: float) -> float:
    return 0.0 if x == 0 and y == y else x * _log(y)


def _logaddexp(x: float, y: float) -> float:
    top = larger(x, y)
    return top if abs(top) == INF or top != top else top + math.log1p(_exp(-abs(x - y)))


add = _scaled(binary(operator.add, lambda *_: 1.0, lambda *_: 1.0, "add", least=BOOL))
sub = _scaled(binary(operator.sub, lambda *_: 1.0, lambda *_: -1.0, "sub"))
mul = binary(operator.mul, lambda _, y: y, lambda x, _: x, "mul", least=BOOL)
_div = binary(divide, lambda _, y: divide(1.0, y), lambda x, y: divide(-x, y * y), "div", least=FLOAT64)
power = binary(_power, _power_by_base, _power_by_exponent, "pow")
# at a tie each gets half
maximum = binary(
    larger,
    lambda x, y: 0.5 if x == y else 0.0 if x < y else 1.0,
    lambda x, y: 0.5 if x == y else 0.0 if y < x else 1.0,
    "maximum",
)
minimum = binary(
    smaller,
    lambda x, y: 0.5 if x == y else 0.0 if x > y else 1.0,
    lambda x, y: 0.5 if x == y else 0.0 if y > x else 1.0,
    "minimum",
)
remainder = binary(_remainder, lambda *_: 1.0, lambda x, y: -math.floor(divide(x, y)), "remainder")
floor_divide = binary(_floor_divide, None, None, "floor_divide")
xlogy = binary(
    _xlogy,
    lambda x, y: 0.0 if x == 0 and y <= 0 else _log(y),
    lambda x, y: divide(x, y),
    "xlogy",
    least=FLOAT64,
)
logaddexp = binary(
    _logaddexp,
    lambda x, y: _exp(x - _logaddexp(x, y)),
    lambda x, y: _exp(y - _logaddexp(x, y)),
    "logaddexp",
    least=FLOAT64,
)
atan2 = binary(
    math.atan2,
    lambda x, y: divide(y, x * x + y * y),
    lambda x, y: divide(-x, x * x + y * y),
    "atan2",
    least=FLOAT64,
)


def div(x: Any, y: Any, *, rounding_mode: str | None = None, **_: Any) -> Tensor:
    """x / y; with a rounding mode the quotient is rounded."""
    if rounding_mode is None:
        return _div(x, y)
    if rounding_mode == "floor":
        return floor_divide(x, y)
    if rounding_mode == "trunc":
        return trunc(_div(x, y)).as_kind(max(tensor_of(x).kind, tensor_of(y).kind))
    raise RuntimeError(f"div expected rounding_mode to be None, 'trunc' or 'floor', found {rounding_mode!r}")


def _compared(function: Binary) -> Callable[..., Tensor]:
    return binary(function, None, None, "compared", kind=BOOL, least=BOOL)


eq, ne = _compared(operator.eq), _compared(operator.ne)
lt, le = _compared(operator.lt), _compared(operator.le)
gt, ge = _compared(operator.gt), _compared(operator.ge)
logical_and = _compared(lambda x, y: bool(x) and bool(y))
logical_or = _compared(lambda x, y: bool(x) or bool(y))
logical_xor = _compared(lambda x, y: bool(x) != bool(y))


def _bits(function: Binary, name: str) -> Callable[..., Tensor]:
    apply = binary(function, None, None, name, least=BOOL)

    def checked(x: Any, y: Any) -> Tensor:
        if FLOAT64 in (tensor_of(x).kind, tensor_of(y).kind):
            raise RuntimeError(f'"{name}" not implemented for floating numbers')
        return apply(x, y)

    return checked


bitwise_and = _bits(operator.and_, "bitwise_and")
bitwise_or = _bits(operator.or_, "bitwise_or")
bitwise_xor = _bits(operator.xor, "bitwise_xor")


def isclose(x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Whether entries are close."""
    return _compared(lambda a, b: close(a, b, rtol, atol, equal_nan))(x, y)
