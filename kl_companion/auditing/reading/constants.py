"""The text of a function: its syntax tree, what the names in it are, and the numbers that it contains."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

_MOST = 40  # numbers of a long function are many, and few of them are a temperature
_UNKNOWN: Mapping[str, Any] = MappingProxyType({})


class FunctionText:
    """A function and its syntax tree.

    Attributes:
        function: The Python function of a method, of a module or of an object that is called.
        owner: What ``self`` is in it.
        values: What its names are, where that is known: the caller's, and assigned constants.
        nodes: Of its syntax tree; none where there is no text, as of a function typed into a prompt.
    """

    def __init__(self, function: Any, values: Mapping[str, Any] = _UNKNOWN, owner: Any = None) -> None:
        plain = getattr(function, "__func__", function)
        if not inspect.isfunction(plain):
            plain = getattr(type(function), "forward", type(function).__call__)
        self.function: Any = plain
        self.owner = getattr(function, "__self__", function) if owner is None else owner
        self.values = dict(values)
        try:
            self.nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(plain)))))
        except (OSError, TypeError, SyntaxError):
            self.nodes = []
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.values.setdefault(node.targets[0].id, self.value(node.value))

    @cached_property
    def names(self) -> dict[str, Any]:
        """Values of names of the closure and of the module."""
        try:
            found = inspect.getclosurevars(self.function)
        except (TypeError, ValueError):  # not Python; or a name of the closure that has no value yet
            return {}
        return {**found.nonlocals, **found.globals, **found.nonlocals}

    def free(self, name: str) -> Any:
        """Return the value of a name that the function does not bind; None of an unknown one."""
        return self.names.get(name, getattr(self.function, "__globals__", {}).get(name))

    def value(self, node: ast.expr) -> Any:
        """Return the value of a constant, a name, an attribute or an entry; None where it is not known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name | ast.Attribute) and (name := ast.unparse(node)) in self.values:
            return self.values[name]
        if isinstance(node, ast.Name):
            return self.owner if node.id == "self" else self.free(node.id)
        if isinstance(node, ast.Attribute):
            key: Any = node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            key = node.slice.value
        else:
            return None
        fields = self.value(node.value)
        return (fields if isinstance(fields, Mapping) else getattr(fields, "__dict__", {})).get(key)

    def helper(self, call: ast.Call) -> Any:
        """Return the function of the same file that is called; None of another."""
        name = ast.unparse(call.func)
        if name.startswith("self.") and name.count(".") == 1:
            found = inspect.getattr_static(self.owner, name[5:], None)
            found = getattr(found, "__func__", found)  # of a static or a class method
        else:
            found = self.free(name)
        same = inspect.isfunction(found) and found.__code__.co_filename == self.function.__code__.co_filename
        return found if same and found is not self.function else None


def numbers_in(function: Any, values: Iterable[Any] = ()) -> tuple[float, ...]:
    """Return the positive numbers of a function: of options, of its closure and module, of its text.

    Args:
        function: A function, a method or an object that is called.
        values: Values of its options and defaults.
    """
    text = FunctionText(function)
    fields = [] if inspect.isfunction(text.owner) else getattr(text.owner, "__dict__", {}).values()
    found = [*values, *fields, *text.names.values()]
    found += [node.value for node in text.nodes if isinstance(node, ast.Constant)]
    if not text.nodes:
        found += getattr(getattr(text.function, "__code__", None), "co_consts", ())
    numbers = (float(x) for x in found if isinstance(x, int | float) and not isinstance(x, bool))
    return tuple(dict.fromkeys(x for x in numbers if 0 < x < 1e3))[:_MOST]
