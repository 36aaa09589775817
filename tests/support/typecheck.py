"""The checker of types that the tests put around every function of kl_companion, as it is imported.

beartype does the work; this decides what it is put around: functions and methods of modules and classes. Not
around functions inside of functions, which would be decorated at every call, nor around what dataclasses and
named tuples write themselves. What is wrong is told as a warning, and pytest makes an error of it (in
pyproject.toml), so that the fixture `as_installed` can leave the checker out: a user has none.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any

from beartype import BeartypeConf, beartype

PACKAGES = ("kl_companion", "kl_book")
DECORATOR = "_checked_by_the_tests"
# A thousand checks of statements, which a reader never calls with arguments of his own: mypy reads them.
UNCHECKED = re.compile(r"kl_companion\.book\.claims\.[a-z]+\d{4}[a-z]+(\.|$)")


class WrongType(UserWarning):
    """An argument or a result of another type than its annotation says."""


# An int is welcome where a float is asked for, as everywhere in Python's typing.
_check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=WrongType))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which checks the types of its arguments and its result.

    A name that is imported for type checkers alone cannot be looked up, and is not checked.
    """
    if not isinstance(function, FunctionType) or not function.__annotations__:
        return function
    written, known = function.__annotations__, {}
    for name, hint in written.items():
        try:
            known[name] = eval(hint, function.__globals__) if isinstance(hint, str) else hint
        except NameError:
            continue
    function.__annotations__ = known
    try:
        wrapped = _check(function)
    finally:
        function.__annotations__ = written
    wrapped.__annotations__ = written
    for name in wrapped.__kwdefaults__ or {}:
        if name.endswith("getrandbits"):  # draws the entry of a container that is checked
            wrapped.__kwdefaults__[name] = _first_entry
    return wrapped


def _first_entry(bits: int) -> int:
    """Return 0: `torch.compile` cannot trace a random number, and a test should not depend on one."""
    return 0


class _Decorate(ast.NodeTransformer):
    """Puts `checked` next to each function of a module or a class, below its other decorators."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        at = node.lineno
        node.decorator_list.append(ast.Name(DECORATOR, ast.Load(), lineno=at, col_offset=0))
        return node


class _Loader(SourceFileLoader):
    """Reads a module and decorates its functions; nothing of it is kept on disk."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        tree = _Decorate().visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[DECORATOR] = checked
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules of the package, for `_Loader`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in PACKAGES or UNCHECKED.match(name):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder())
