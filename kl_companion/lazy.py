"""Packages that load a public name when it is first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], list[str], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package and its `__all__`.

    A package writes `_NAMES: dict[str, str] = {...}` as a literal, because the book's cache reads it without
    running it, and `__getattr__, __all__, __dir__ = lazy(__name__, _NAMES)`. For a type checker it imports
    the same names under `if TYPE_CHECKING:`. No name may also be that of a module in the package: importing
    the module would hide the name.

    Args:
        package: Dotted name of the package.
        names: Public name to the dotted module that defines it.

    Returns:
        `__getattr__` (AttributeError for a name that is not public), `__all__` and `__dir__`.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(names[name]), name)
        setattr(sys.modules[package], name, value)  # the next look-up finds it without this function
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get, list(names), listed
