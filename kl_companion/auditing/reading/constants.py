"""Numbers that stand in a loss: temperatures, shares and coefficients as its author wrote them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

_MOST = 40  # numbers of a long function are many, and few of them are a temperature


def numbers_in(function: Any, values: Iterable[Any] = ()) -> tuple[float, ...]:
    """Return the positive numbers of a function: of options, of its closure and module, of its text.

    Args:
        function: A function, a method or an object that is called.
        values: Values of its options and defaults.
    """
    found = [*values, *_attributes(getattr(function, "__self__", function))]
    plain = getattr(function, "__func__", function)
    plain = plain if inspect.isfunction(plain) else getattr(type(function), "forward", None)
    if inspect.isfunction(plain):
        found += [*_free(plain), *_written(plain)]
    numbers = (float(x) for x in found if isinstance(x, int | float) and not isinstance(x, bool))
    return tuple(dict.fromkeys(x for x in numbers if 0 < x < 1e3))[:_MOST]


def _attributes(owner: Any) -> Iterable[Any]:
    return [] if inspect.isfunction(owner) else getattr(owner, "__dict__", {}).values()


def _free(function: Any) -> Iterator[Any]:
    """Yield values of the closure and of names of the module."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet filled
            continue
    yield from (function.__globals__.get(name) for name in function.__code__.co_names)


def _written(function: Any) -> list[Any]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # typed into a prompt, or lines of a larger expression
        return list(function.__code__.co_consts)
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
