"""The few operations that let one formula serve tensors and symbols.

Every estimator in this package is written with these functions and ordinary arithmetic. Fed
``torch.Tensor`` arguments it computes a loss; fed ``sympy.Expr`` arguments it returns the expression
from which the derivations are made. Nothing else in the package asks which of the two it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, TypeVar

import sympy
import torch

Array = TypeVar("Array", torch.Tensor, sympy.Expr)


class StopGradient(sympy.Function):
    """The symbolic twin of ``Tensor.detach``: equal to its argument, with derivative zero."""

    nargs = (1,)

    def fdiff(self, *_: int) -> sympy.Expr:
        """Derivative with respect to the argument: zero, whatever the argument holds."""
        return sympy.S.Zero

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        body = rf"\operatorname{{sg}}\left({printer._print(self.args[0])}\right)"
        return body if exp is None else f"{{{body}}}^{{{exp}}}"


def is_symbolic(x: object, *others: object) -> bool:
    """Whether all are symbolic expressions."""
    return all(isinstance(each, sympy.Expr) for each in (x, *others))


def constant(number: float, like: Array) -> Any:
    """A number as it goes with an array: of symbols the nearest simple fraction or root."""
    return sympy.nsimplify(number) if is_symbolic(like) else float(number)


def _refuse(name: str, x: object) -> TypeError:
    return TypeError(f"{name} got {type(x).__name__}, expected a torch.Tensor or a sympy.Expr")


@singledispatch
def stop_gradient(x: Any) -> Any:
    """The value of ``x`` without its gradient: ``x.detach()`` or ``sg(x)``."""
    raise _refuse("stop_gradient", x)


@stop_gradient.register
def _(x: torch.Tensor) -> torch.Tensor:
    return x.detach()


@stop_gradient.register
def _(x: sympy.Expr) -> sympy.Expr:
    return StopGradient(x)


def _without_nan(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return ``function(x)``, whose slope where the value overflows is infinite, but 0 times it is 0.

    An infinite number times the zero that a mask passes back is NaN: one padded token would make the gradient
    of every parameter NaN, although the loss is finite. Two products with the largest number of the dtype
    overflow in the same way, and keep a zero.
    """
    if not x.requires_grad:  # no slope is asked for
        return function(x)
    largest = torch.finfo(x.dtype).max
    infinite = x.detach() >= math.log(largest)
    return torch.where(infinite, x * largest * largest, function(x.masked_fill(infinite, 0.0)))


@singledispatch
def exp(x: Any) -> Any:
    """e to the power ``x``, elementwise; a gradient of 0 stays 0 where the result is infinite."""
    raise _refuse("exp", x)


@exp.register
def _(x: torch.Tensor) -> torch.Tensor:
    return _without_nan(torch.exp, x)


@exp.register
def _(x: sympy.Expr) -> sympy.Expr:
    return sympy.exp(x)


@singledispatch
def log(x: Any) -> Any:
    """Natural logarithm, elementwise."""
    raise _refuse("log", x)


@log.register
def _(x: torch.Tensor) -> torch.Tensor:
    return x.log()


@log.register
def _(x: sympy.Expr) -> sympy.Expr:
    return sympy.log(x)


@singledispatch
def expm1(x: Any) -> Any:
    """e to the power ``x``, minus one, accurate for tensors near zero; its gradient as that of `exp`."""
    raise _refuse("expm1", x)


@expm1.register
def _(x: torch.Tensor) -> torch.Tensor:
    return _without_nan(torch.expm1, x)


@expm1.register
def _(x: sympy.Expr) -> sympy.Expr:
    return sympy.exp(x) - 1


@singledispatch
def product(x: Any, y: Any) -> Any:
    """Return ``x`` times ``y``, and 0 where ``x`` is 0 even if ``y`` is infinite: the limit of w log w."""
    raise _refuse("product", x)


@product.register
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).where(x != 0, 0.0)


@product.register
def _(x: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
    return x * y


@singledispatch
def finite(x: Any) -> Any:
    """Return ``x`` with infinities replaced by the largest number of its dtype; NaN stays NaN."""
    raise _refuse("finite", x)


@finite.register
def _(x: torch.Tensor) -> torch.Tensor:
    largest = torch.finfo(x.dtype).max
    return x.clamp(-largest, largest)


@finite.register
def _(x: sympy.Expr) -> sympy.Expr:
    return x


def score_ratio(logp: Array) -> Array:
    """r = pi / sg(pi): equal to one, and its gradient is the score, the gradient of ``logp``.

    Multiplying a sample by r adds the score-function part of the gradient that sampling dropped
    (wang2025choosing, section 2.1; emapg2026, table 1).
    """
    return exp(logp - stop_gradient(logp))
