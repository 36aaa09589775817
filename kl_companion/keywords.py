"""Keywords that have a new name: the old one is an error that says the new one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


def renamed(**names: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Return a decorator that refuses old keywords of a function.

    Args:
        **names: ``old="new"`` for each keyword.

    Raises:
        TypeError: from the function, when it is called with an old keyword; the message has the new one.
    """

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            for old in kwargs.keys() & names.keys():
                raise TypeError(f"{function.__name__}() got {old}=, expected {names[old]}=: it was renamed")
            return function(*args, **kwargs)

        return call

    return decorate
