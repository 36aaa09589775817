"""The text of a function, read once: its parameters, its syntax tree, and the numbers that it contains."""

from __future__ import annotations

import ast
import copy
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import torch

_MOST = 40  # numbers of a long function are many, and few of them are a temperature


class FunctionText:
    """A function, its parameters and its syntax tree.

    Attributes:
        call: The function, method, module or object that is called.
        function: The Python function of it.
        owner: What ``self`` is in it.
        values: What its names are, where that is known, see `knowing`.
        source: Its text; "" where there is none, as of a function typed into a prompt.
        nodes: Of its syntax tree; none where there is no text.
    """

    def __init__(self, call: Any, owner: Any = None) -> None:
        plain = getattr(call, "__func__", call)
        if not inspect.isfunction(plain):
            plain = getattr(type(call), "forward", type(call).__call__)
        self.call = call
        self.function: Any = plain
        self.owner = getattr(call, "__self__", call) if owner is None else owner
        self.values: dict[str, Any] = {}
        try:
            self.source = inspect.getsource(plain)
            self.nodes = list(ast.walk(ast.parse(textwrap.dedent(self.source))))
        except (OSError, TypeError, SyntaxError):
            self.source, self.nodes = "", []

    @cached_property
    def parameters(self) -> list[inspect.Parameter]:
        """The parameters of a function or of a module's forward; ValueError where they cannot be read."""
        try:
            return list(inspect.signature(getattr(self.call, "forward", self.call)).parameters.values())
        except (TypeError, ValueError) as error:
            why = f"{label_of(self.call)} has no signature that can be read, expected a Python function"
            raise ValueError(why) from error

    @cached_property
    def names(self) -> dict[str, Any]:
        """Values of names of the closure and of the module."""
        try:
            found = inspect.getclosurevars(self.function)
        except (TypeError, ValueError):  # not Python; or a name of the closure that has no value yet
            return {}
        return {**found.nonlocals, **found.globals, **found.nonlocals}

    def knowing(self, values: Mapping[str, Any]) -> FunctionText:
        """Return the same text with values of its names: those of the caller, then assigned constants."""
        text = copy.copy(self)
        text.values = dict(values)
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                text.values.setdefault(node.targets[0].id, text.value(node.value))
        return text

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

    def unpacked(self, method: str) -> list[str]:
        """Return the names to which the results of a method are assigned, none where it is one object."""
        for node in self.nodes:
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
                continue
            call, target = node.value.func, node.targets[0]
            if isinstance(call, ast.Attribute) and call.attr == method:
                return [ast.unparse(x) for x in target.elts] if isinstance(target, ast.Tuple) else []
        return []

    def called(self, name: str) -> bool:
        """Whether a variable is called, or a method of it that no tensor has."""
        for node in self.nodes:
            if not isinstance(node, ast.Call):
                continue
            path = ast.unparse(node.func).split(".")
            if path[0] == name and not (path[1:] and hasattr(torch.Tensor, path[-1])):
                return True
        return False

    def has(self, pattern: str) -> bool:
        """Whether a regular expression occurs in the text."""
        return re.search(pattern, self.source) is not None

    def numbers(self, values: Iterable[Any] = ()) -> tuple[float, ...]:
        """Return the positive numbers of the function: of options, of its closure and module, of its text.

        Args:
            values: Values of its options and defaults.
        """
        fields = [] if inspect.isfunction(self.owner) else getattr(self.owner, "__dict__", {}).values()
        found = [*values, *fields, *self.names.values()]
        found += [node.value for node in self.nodes if isinstance(node, ast.Constant)]
        if not self.nodes:
            found += getattr(getattr(self.function, "__code__", None), "co_consts", ())
        numbers = (float(x) for x in found if isinstance(x, int | float) and not isinstance(x, bool))
        return tuple(dict.fromkeys(x for x in numbers if 0 < x < 1e3))[:_MOST]


def label_of(loss: Any) -> str:
    """Return what a loss is called in a message."""
    name = getattr(loss, "name", None) or getattr(loss, "__qualname__", None) or type(loss).__name__
    return str(name).rpartition("<locals>.")[2]
