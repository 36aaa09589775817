"""Packages that load a public name when it is first used (PEP 562)."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_LISTED = re.compile(r"^    from ([\w.]+) import (\w+) as \2$", re.M)


def lazy(package: str) -> tuple[Callable[[str], Any], list[str], Callable[[], list[str]]]:
    """Make the functions `__getattr__` and `__dir__` of a package, and its `__all__`.

    A package imports its public names for a type checker, ``from package.module import name as name`` under
    ``if TYPE_CHECKING:``, and ends with ``__getattr__, __all__, __dir__ = lazy(__name__)``, which reads the
    same lines. No name may also be that of a module in the package: importing the module would hide the name.

    Args:
        package: Dotted name of the package, which is being imported.

    Returns:
        `__getattr__` (AttributeError for a name that is not public), `__all__` and `__dir__`.

    Raises:
        ImportError: the package has no source to read.
    """
    module = sys.modules[package]
    # It asks a loader where there is no file; pytest's loader of plugins has a file, and no `get_source`.
    source = "".join(linecache.getlines(module.__file__ or "", vars(module)))
    if not source:
        raise ImportError(f"{package} was installed without its source, from which its public names are read")
    names = public_names(source)

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(names[name]), name)
        setattr(sys.modules[package], name, value)  # the next look-up finds it without this function
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get, list(names), listed


def public_names(source: str) -> dict[str, str]:
    r"""Public names of a lazy package, each with the dotted module that defines it; {} if it lists none.

    Args:
        source: The text of an ``__init__.py``.

    Example:
        >>> public_names("if TYPE_CHECKING:\n    from toy.ops import log as log")
        {'log': 'toy.ops'}
    """
    return {name: module for module, name in _LISTED.findall(source)}
